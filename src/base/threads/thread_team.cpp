#include "base/threads/thread_team.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/env.h"
#include "base/threads/work_spans.h"

namespace brrr {
namespace {

/// How long a thread polls before it sleeps. A sleeping thread takes about as long to wake.
struct Patience {
  double worker, leader;
};

Patience read_patience() {
  const auto policy = env::get("OMP_WAIT_POLICY").value_or("");
  if (policy == "passive" || policy == "PASSIVE") return {0, 0};
  if (policy == "active" || policy == "ACTIVE") return {10e-3, 10e-3};
  return {40e-6, 40e-6};
}

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Polls until `done` or for about `seconds`; returns whether it is done.
template <typename Done>
bool poll(double seconds, Done&& done) {
  if (done()) return true;
  if (seconds <= 0) return false;
  const double end = now_seconds() + seconds;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      pause();
    }
  } while (now_seconds() < end);
  return done();
}

/// Whether other programs keep taking processors from members that hold a piece.
class Neighbours {
 public:
  bool are_busy(double now) const { return now < alone_until_; }

  /// The team worked for `seconds` until `now`; a member was off its processor for `parked` of them
  /// while the leader waited for it.
  void record(double now, double seconds, double parked) {
    teamed_ += seconds;
    parked_ += parked;
    if (parked_ > kLeast && parked_ > kShare * teamed_) {
      alone_until_ = now + alone_;
      alone_ = std::min(2 * alone_, kLongest);
      teamed_ = parked_ = 0;
    } else if (teamed_ > kWindow) {
      teamed_ = parked_ = 0;
      alone_ = kShortest;
    }
  }

 private:
  static constexpr double kLeast = 1e-3;  // seconds parked, less happens to everyone
  static constexpr double kShare = 0.2;   // of the team's time
  static constexpr double kWindow = 20e-3;
  static constexpr double kShortest = 50e-3, kLongest = 400e-3;  // alone before the next try

  double teamed_ = 0, parked_ = 0;
  double alone_until_ = 0, alone_ = kShortest;
};

thread_local bool at_work = false;
thread_local int own_slot = 0;

/// Sets the calling thread's state for the pieces it runs.
class AtWork {
 public:
  explicit AtWork(int slot) : was_at_work_(at_work), slot_before_(own_slot) {
    at_work = true;
    own_slot = slot;
  }
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;
  ~AtWork() {
    at_work = was_at_work_;
    own_slot = slot_before_;
  }

 private:
  bool was_at_work_;
  int slot_before_;
};

/// Published by the leader before the gate opens, read by members inside it.
struct Job {
  thread_team::Piece piece = nullptr;
  const void* work = nullptr;
  int64_t pieces = 0;
  bool has_preferences = false;  // pieces are claimed by `unclaimed`, else by `next`
};

/// The word through which workers enter a job: whether it is open, how many workers are inside, how
/// many members it wants, and the job's number.
struct Gate {
  static constexpr uint64_t kOpen = 1, kOneInside = 2;
  uint64_t word = 0;
  bool is_open() const { return (word & kOpen) != 0; }
  uint64_t inside() const { return word >> 1 & 0x7fff; }
  int members() const { return static_cast<int>(word >> 16 & 0xffff); }
  uint32_t job() const { return static_cast<uint32_t>(word >> 32); }
  static Gate opened(uint32_t job, int members) {
    return {uint64_t{job} << 32 | static_cast<uint64_t>(members) << 16 | kOpen};
  }
};
constexpr int kMostMembers = 0x7fff;

class Team {
 public:
  /// Never destroyed: workers may poll it while the process ends.
  static Team& get() {
    static Team* const team = new Team;
    return *team;
  }

  void run(int64_t pieces, int members, thread_team::Piece piece, const void* work) {
    const std::unique_lock leading(leading_, std::try_to_lock);
    const double begin = now_seconds();
    if (!leading.owns_lock() || neighbours_.are_busy(begin)) {
      const AtWork here(0);
      for (int64_t i = 0; i < pieces; ++i) piece(work, i, 0);
      return;
    }
    members = std::min(members, kMostMembers);
    hire(members - 1);
    job_ = {piece, work, pieces, pieces <= std::min(members, 64)};
    next_.store(0, std::memory_order_relaxed);
    unclaimed_.store(job_.has_preferences ? ~uint64_t{0} >> (64 - pieces) : 0,
                     std::memory_order_relaxed);
    gate_.store(Gate::opened(++number_, members).word, std::memory_order_seq_cst);
    for (size_t i = 0; i + 1 < static_cast<size_t>(members) && i < workers_.size(); ++i)
      workers_[i].wake();
    take_pieces(0);
    const double parked = wait_for_members();
    const double end = now_seconds();
    neighbours_.record(end, end - begin, parked);
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  struct alignas(64) Worker {
    std::atomic<uint32_t> asleep{0};
    std::atomic<bool> is_inside{false};
    clockid_t processor_time = CLOCK_THREAD_CPUTIME_ID;

    void wake() {
      if (asleep.load(std::memory_order_seq_cst) == 0) return;
      asleep.store(0, std::memory_order_seq_cst);
      asleep.notify_one();
    }
    /// Seconds that it has been on a processor.
    double seconds_run() const {
      timespec t{};
      ::clock_gettime(processor_time, &t);
      return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    }
  };

  Gate gate(std::memory_order order) const { return {gate_.load(order)}; }

  /// Starts threads until there are `count`; fewer where the system refuses them.
  void hire(int count) {
    while (workers_.size() < static_cast<size_t>(count)) {
      Worker& worker = workers_.emplace_back();
      const int slot = static_cast<int>(workers_.size());
      try {
        std::thread thread([this, &worker, slot, job = number_] { serve(worker, slot, job); });
        ::pthread_getcpuclockid(thread.native_handle(), &worker.processor_time);
        thread.detach();
      } catch (const std::system_error&) {
        workers_.pop_back();
        return;
      }
    }
  }

  /// A worker's life. `seen` is the last job that it took part in or passed by.
  [[noreturn]] void serve(Worker& self, int slot, uint32_t seen) {
    double idle_since = now_seconds();
    for (;;) {
      Gate gate = wait_for_job(self, seen, idle_since);
      seen = gate.job();
      while (gate.is_open() && gate.job() == seen && slot < gate.members()) {
        if (!gate_.compare_exchange_weak(gate.word, gate.word + Gate::kOneInside,
                                         std::memory_order_seq_cst))
          continue;
        self.is_inside.store(true, std::memory_order_relaxed);
        take_pieces(slot);
        self.is_inside.store(false, std::memory_order_relaxed);
        gate.word = gate_.fetch_sub(Gate::kOneInside, std::memory_order_seq_cst);
        if (!gate.is_open() && gate.inside() == 1 && leader_asleep_.load() != 0) {
          leader_asleep_.store(0);
          leader_asleep_.notify_one();
        }
        idle_since = now_seconds();
        break;
      }
    }
  }

  Gate wait_for_job(Worker& self, uint32_t seen, double idle_since) {
    const auto is_new = [&] { return gate(std::memory_order_acquire).job() != seen; };
    if (!poll(idle_since + patience_.worker - now_seconds(), is_new)) {
      for (;;) {
        self.asleep.store(1, std::memory_order_seq_cst);
        if (gate(std::memory_order_seq_cst).job() != seen) break;
        self.asleep.wait(1);
        if (is_new()) break;
      }
      self.asleep.store(0, std::memory_order_relaxed);
    }
    return gate(std::memory_order_acquire);
  }

  /// The next piece for this thread, or -1.
  int64_t claim(int slot) {
    if (!job_.has_preferences) {
      const int64_t piece = next_.fetch_add(1, std::memory_order_relaxed);
      return piece < job_.pieces ? piece : -1;
    }
    uint64_t left = unclaimed_.load(std::memory_order_relaxed);
    while (left != 0) {
      const bool has_own = slot < 64 && (left >> slot & 1) != 0;
      const int piece = has_own ? slot : std::countr_zero(left);
      if (unclaimed_.compare_exchange_weak(left, left & ~(uint64_t{1} << piece),
                                           std::memory_order_relaxed))
        return piece;
    }
    return -1;
  }

  void take_pieces(int slot) {
    const WorkClock clock("share");
    const AtWork here(slot);
    try {
      for (int64_t piece; (piece = claim(slot)) >= 0;) job_.piece(job_.work, piece, slot);
    } catch (...) {
      const std::lock_guard lock(failing_);
      if (failure_ == nullptr) failure_ = std::current_exception();
      next_.store(job_.pieces, std::memory_order_relaxed);
      unclaimed_.store(0, std::memory_order_relaxed);
    }
  }

  /// Closes the gate and waits until nobody is inside. Returns for how long a member that held a
  /// piece was off its processor while the leader slept.
  double wait_for_members() {
    gate_.fetch_and(~Gate::kOpen, std::memory_order_seq_cst);
    const auto is_empty = [&] { return gate(std::memory_order_acquire).inside() == 0; };
    if (poll(patience_.leader, is_empty)) return 0;
    const double begin = now_seconds();
    std::vector<std::pair<Worker*, double>> members;
    for (Worker& worker : workers_)
      if (worker.is_inside.load(std::memory_order_relaxed))
        members.emplace_back(&worker, worker.seconds_run());
    for (;;) {
      leader_asleep_.store(1);
      if (gate(std::memory_order_seq_cst).inside() == 0) break;
      leader_asleep_.wait(1);
      if (is_empty()) break;
    }
    leader_asleep_.store(0);
    const double waited = now_seconds() - begin;
    double parked = 0;
    for (const auto& [worker, before] : members)
      parked = std::max(parked, waited - (worker->seconds_run() - before));
    return parked;
  }

  std::mutex leading_;  // held by the leader for the length of a job
  std::deque<Worker> workers_;
  Job job_;
  uint32_t number_ = 0;
  Neighbours neighbours_;
  const Patience patience_ = read_patience();
  std::mutex failing_;
  std::exception_ptr failure_;
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  std::atomic<uint64_t> unclaimed_{0};
  alignas(64) std::atomic<uint32_t> leader_asleep_{0};
};

int first_thread_count() {
  if (const auto given = env::get("OMP_NUM_THREADS")) {
    int threads = 0;
    const char* const end = given->data() + given->size();
    const auto [at, error] = std::from_chars(given->data(), end, threads);
    if (error == std::errc() && threads > 0 && (at == end || *at == ',')) return threads;
  }
  return usable_processors();
}

std::atomic<int>& count() {
  static std::atomic<int> threads{first_thread_count()};
  return threads;
}

}  // namespace

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int thread_count() { return count().load(std::memory_order_relaxed); }
void set_thread_count(int threads) { count().store(std::max(1, threads)); }

void thread_team::run(int64_t pieces, int members, Piece piece, const void* work) {
  Team::get().run(pieces, members, piece, work);
}
bool thread_team::is_at_work() { return at_work; }
int thread_team::slot() { return own_slot; }

}  // namespace brrr
