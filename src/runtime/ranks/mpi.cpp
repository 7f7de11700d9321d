// The transport between hosts, by the system's MPI library. Besides segments, ranks send each other
// notices: beats, by which each rank watches its predecessor, that a rank is done, and why the run
// ended.

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/tell.h"
#include "runtime/ranks/build_id.h"
#include "runtime/ranks/mpi_library.h"
#include "runtime/ranks/processes.h"
#include "runtime/ranks/stuck_launcher.h"
#include "runtime/ranks/transports.h"

namespace brrr::ranks {
namespace {

constexpr int kSegmentTag = 1, kNoticeTag = 2;
constexpr int64_t kMostBytesOfAMessage = 1 << 30;
constexpr double kBeatSeconds = 0.5;

struct Notice {
  enum Kind : int32_t { kBeat, kDone, kEnded };
  int32_t kind = kBeat;
  int32_t sender = 0;
  int32_t silent_rank = -1;  // the rank that did not answer, if that ended the run
  char sentence[1024] = {};  // why the run ended
};

/// The first message between ranks.
struct Introduction {
  uint64_t build = 0;
  int32_t pid = 0;
  char host[68] = {};
};

/// Ends the process if this object lives longer than `seconds`. MPICH's MPI_Finalize asks the
/// daemon of its host, which waits without a limit for a host that was cut off.
class ExitAfter {
 public:
  ExitAfter(double seconds, std::string who)
      : thread_([this, seconds, who = std::move(who)] {
          std::unique_lock lock(mutex_);
          if (ended_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return ends_; }))
            return;
          tell(
              "brrr: {}, but MPI_Finalize did not end within {:.0f} s: see whether a host is cut "
              "off\n",
              who, seconds);
          end_stuck_launcher();
          std::fflush(stdout);
          ::_exit(static_cast<int>(kLostRankExit));
        }) {}
  ExitAfter(const ExitAfter&) = delete;
  ExitAfter& operator=(const ExitAfter&) = delete;
  ~ExitAfter() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ends_ = false;
  std::thread thread_;  // the last member: it uses the others
};

class Mpi : public Transport {
 public:
  Mpi(const RankPlace& place, const TransportOptions& options)
      : Transport(place),
        mpi_(place.source),
        timeout_seconds_(options.timeout_seconds),
        done_(static_cast<size_t>(place.ranks)) {
    constexpr int kFunneled = 1;  // all calls come from the thread that makes this object
    int level = 0;
    mpi_.check(mpi_.init_thread(nullptr, nullptr, kFunneled, &level), "MPI_Init_thread");
    mpi_.check(mpi_.comm_set_errhandler(mpi_.world, mpi_.errors_return), "MPI_Comm_set_errhandler");
    check_place();
    await_notice();
    try {
      introduce();
    } catch (...) {
      cancel_notice();
      throw;
    }
  }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  /// After a fault, MPI is not called any more: it could write into memory that was freed, and
  /// MPI_Finalize would wait for ranks that are lost.
  ~Mpi() override {
    try {
      if (is_abandoned_ && !has_ended_) say_why_abandoned();
      if (!has_ended_) finish();
    } catch (const UserError&) {  // the process is about to end with its own message
    }
  }

  std::string name() const override { return fmt::format("MPI ({})", mpi_.version()); }

  void abandon(const std::string& why) override {
    const std::lock_guard lock(mutex_);
    why_ = why;
    is_abandoned_ = true;
  }

  double idle_seconds() const override { return kBeatSeconds / 2; }
  void idle() override { look_around(); }

  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    begin_exchange(out, in);
    end_exchange();
  }

  /// Two: while the first waits for its last bytes, the second is announced to its receiver.
  int most_in_flight() const override { return 2; }

  void begin_exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    copy_own_segments(out, in, rank());
    std::vector<Pending>& pending = begun_.emplace_back();
    for (const Incoming& s : in)
      each_message(s, [&](std::byte* data, int bytes) {
        MpiLibrary::Handle request = 0;
        mpi_.check(mpi_.irecv(data, bytes, mpi_.byte, s.peer, kSegmentTag, mpi_.world, &request),
                   "MPI_Irecv");
        pending.push_back({s.peer, request});
      });
    for (const Outgoing& s : out)
      each_message(s, [&](const std::byte* data, int bytes) {
        MpiLibrary::Handle request = 0;
        mpi_.check(mpi_.isend(data, bytes, mpi_.byte, s.peer, kSegmentTag, mpi_.world, &request),
                   "MPI_Isend");
        pending.push_back({s.peer, request});
      });
  }

  void end_exchange() override {
    std::vector<Pending>& pending = begun_.front();
    wait_until([&] {
      std::erase_if(pending, [&](Pending& p) { return is_done(p.request); });
      if (pending.empty()) return true;
      for (const Pending& p : pending)
        // Its last bytes may still be on their way, so wait for a second.
        if (done_[static_cast<size_t>(p.peer)] && since_done_.seconds() > 1)
          end_run(
              fmt::format("{} finished while other ranks still waited for it; start all ranks "
                          "with the same options and data",
                          who(p.peer)));
      return false;
    });
    begun_.pop_front();
  }

 private:
  /// A message of an exchange on its way.
  struct Pending {
    int peer;
    MpiLibrary::Handle request;
  };

  // ---- connecting

  void check_place() const {
    int rank_here = 0, ranks_here = 0;
    mpi_.check(mpi_.comm_rank(mpi_.world, &rank_here), "MPI_Comm_rank");
    mpi_.check(mpi_.comm_size(mpi_.world, &ranks_here), "MPI_Comm_size");
    if (ranks_here != ranks() || rank_here != rank())
      usage_error(
          "MPI says that this is rank {} of {}, but {} says rank {} of {}; start the ranks by "
          "mpirun of the same MPI ({})",
          rank_here, ranks_here, place().source, rank(), ranks(), mpi_.version());
  }

  void introduce() {
    Introduction own{.build = program_build_id(), .pid = own_process().pid};
    const std::string host = host_name();
    std::memcpy(own.host, host.data(), std::min(host.size(), sizeof own.host - 1));
    introductions_.resize(static_cast<size_t>(ranks()));
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    for (int peer = 0; peer < ranks(); ++peer) {
      out.push_back({peer, reinterpret_cast<const std::byte*>(&own), sizeof own});
      in.push_back({peer, reinterpret_cast<std::byte*>(&introductions_[static_cast<size_t>(peer)]),
                    sizeof own});
    }
    exchange(out, in);
    for (int peer = 0; peer < ranks(); ++peer)
      if (introductions_[static_cast<size_t>(peer)].build != introductions_[0].build)
        throw LostRank(fmt::format("{} runs another build of brrr than rank 0; start the same "
                                   "program on all ranks",
                                   who(peer)),
                       ExitCode::kUsage);
  }

  /// Tells the others that this rank is done, and waits until all are, because MPI_Finalize needs
  /// all ranks.
  void finish() {
    for (int peer = 0; peer < ranks(); ++peer)
      if (peer != rank()) send_notice({.kind = Notice::kDone, .sender = rank()}, peer);
    done_[static_cast<size_t>(rank())] = true;
    wait_until([&] {
      drop_sent_notices();
      return notices_.empty() && std::ranges::all_of(done_, [](bool done) { return done; });
    });
    cancel_notice();
    const ExitAfter limit(timeout_seconds_, fmt::format("{} is done", who(rank())));
    mpi_.finalize();
  }

  // ---- waiting

  /// Polls, because MPI makes progress only while it is called, and sleeps in between.
  template <typename Done>
  void wait_until(Done&& done) {
    const Stopwatch watch;
    for (int64_t tries = 0; !done(); ++tries) {
      if (tries % 16 == 0) look_around();
      if (tries < 200)
        ::sched_yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(watch.seconds() < 2e-3 ? 10 : 50));
    }
  }

  bool is_done(MpiLibrary::Handle& request) const {
    int flag = 0;
    mpi_.check(mpi_.test(&request, &flag, mpi_.ignored_status), "MPI_Test");
    return flag != 0;
  }

  template <typename Segment, typename Message>
  void each_message(const Segment& segment, Message&& message) const {
    if (segment.peer == rank()) return;
    for (int64_t at = 0; at < segment.bytes; at += kMostBytesOfAMessage)
      message(segment.data + at,
              static_cast<int>(std::min(kMostBytesOfAMessage, segment.bytes - at)));
  }

  // ---- notices

  void send_notice(const Notice& notice, int peer) {
    notices_.emplace_back(notice);
    Sent& sent = notices_.back();
    mpi_.check(mpi_.isend(&sent.notice, sizeof(Notice), mpi_.byte, peer, kNoticeTag, mpi_.world,
                          &sent.request),
               "MPI_Isend");
  }

  void drop_sent_notices() {
    std::erase_if(notices_, [&](Sent& sent) { return is_done(sent.request); });
  }

  void await_notice() {
    mpi_.check(mpi_.irecv(&received_, sizeof received_, mpi_.byte, mpi_.any_source, kNoticeTag,
                          mpi_.world, &notice_request_),
               "MPI_Irecv");
  }

  void cancel_notice() {
    mpi_.cancel(&notice_request_);
    mpi_.request_free(&notice_request_);
  }

  /// Reads notices and sends beats. Throws LostRank if the run has ended.
  void look_around() {
    if (ranks() == 1) return;
    if (is_abandoned_ && !has_ended_) {
      say_why_abandoned();
      throw LostRank(fmt::format("rank {} (this process) gave up", rank()));
    }
    const int before = (rank() + ranks() - 1) % ranks();
    while (is_done(notice_request_)) {
      const Notice notice = received_;
      await_notice();
      if (notice.sender < 0 || notice.sender >= ranks()) continue;
      if (notice.kind == Notice::kEnded) {
        has_ended_ = true;
        throw_lost({notice.sentence, ::strnlen(notice.sentence, sizeof notice.sentence)},
                   notice.silent_rank);
      }
      if (notice.kind == Notice::kDone) {
        done_[static_cast<size_t>(notice.sender)] = true;
        since_done_.restart();
      }
      if (notice.sender == before) silent_seconds_ = 0;
    }
    // Time in which this process did not run itself does not count.
    silent_seconds_ += std::min(step_.seconds(), 2 * kBeatSeconds);
    step_.restart();
    if (since_beat_.seconds() > kBeatSeconds) {
      since_beat_.restart();
      drop_sent_notices();
      // If the next rank is stopped, unread beats accumulate; 16 of them are enough. A rank that is
      // done is no longer watched.
      if (notices_.size() < 16 && !done_[static_cast<size_t>(rank())])
        send_notice({.kind = Notice::kBeat, .sender = rank()}, (rank() + 1) % ranks());
    }
    if (silent_seconds_ > timeout_seconds_ && !done_[static_cast<size_t>(before)])
      end_run(fmt::format("{} has not answered for {:.0f} s; see whether it is stopped or its host "
                          "is cut off, end it, and start all ranks again",
                          who(before), std::ceil(timeout_seconds_)),
              before);
  }

  /// Tells all ranks why the run ends. Waits until all but the silent rank have received it, at
  /// most a second.
  void tell_all(const std::string& sentence, int silent_rank = -1) {
    has_ended_ = true;
    Notice notice{.kind = Notice::kEnded, .sender = rank(), .silent_rank = silent_rank};
    std::memcpy(notice.sentence, sentence.data(),
                std::min(sentence.size(), sizeof notice.sentence - 1));
    const auto told = notices_.size();
    for (int peer = 0; peer < ranks(); ++peer)
      if (peer != rank() && peer != silent_rank) send_notice(notice, peer);
    const auto all_have_it = [&] {
      return std::all_of(std::next(notices_.begin(), static_cast<ptrdiff_t>(told)), notices_.end(),
                         [&](Sent& sent) { return is_done(sent.request); });
    };
    for (const Stopwatch watch; !all_have_it() && watch.seconds() < 1;) ::sched_yield();
    if (silent_rank < 0) return;
    send_notice(notice, silent_rank);
    drop_sent_notices();
  }

  [[noreturn]] void end_run(const std::string& sentence, int silent_rank = -1) {
    tell_all(sentence, silent_rank);
    throw_lost(sentence, silent_rank);
  }

  [[noreturn]] void throw_lost(const std::string& sentence, int silent_rank) const {
    const auto host = [&](int r) {
      return std::string_view(introductions_[static_cast<size_t>(r)].host);
    };
    if (silent_rank >= 0 && silent_rank < std::ssize(introductions_) &&
        host(silent_rank) != host(rank()))
      throw SilentHost(sentence);
    if (silent_rank < 0) throw AbandonedRun(sentence);
    throw LostRank(sentence);
  }

  void say_why_abandoned() {
    const std::lock_guard lock(mutex_);
    tell_all(fmt::format("{} gave up: {}", who(rank()), why_));
  }

  std::string who(int rank) const {
    if (introductions_.empty() || introductions_[static_cast<size_t>(rank)].pid == 0)
      return fmt::format("rank {}", rank);
    const Introduction& i = introductions_[static_cast<size_t>(rank)];
    return fmt::format("rank {} on {} (process {})", rank, i.host, i.pid);
  }

  struct Sent {
    explicit Sent(const Notice& n) : notice(n) {}
    Notice notice;
    MpiLibrary::Handle request = 0;
  };

  MpiLibrary mpi_;
  double timeout_seconds_;
  std::vector<Introduction> introductions_;  // by rank
  std::vector<bool> done_;
  std::deque<std::vector<Pending>> begun_;  // by exchange
  Stopwatch since_done_, since_beat_, step_;
  double silent_seconds_ = 0;  // for which the predecessor has been silent
  bool has_ended_ = false;
  Notice received_;
  MpiLibrary::Handle notice_request_ = 0;
  std::list<Sent> notices_;  // that are being sent
  std::mutex mutex_;
  std::string why_;  // under mutex_
  std::atomic<bool> is_abandoned_{false};
};

}  // namespace

std::unique_ptr<Transport> open_mpi(const RankPlace& place, const TransportOptions& options) {
  return std::make_unique<Mpi>(place, options);
}

}  // namespace brrr::ranks
