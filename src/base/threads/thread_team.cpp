#include "base/threads/thread_team.h"
#include "base/threads/thread_local.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cctype>
#include <cstdlib>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/env.h"
#include "base/threads/work_spans.h"

namespace brrr {
namespace {

constexpr int kMostMembers = 0x7fff;

/// Seconds that a thread polls before it sleeps. The default is about the latency of a wake-up.
double read_spin_seconds() {
  std::string policy = env::get("OMP_WAIT_POLICY").value_or("");
  for (char& c : policy) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (policy == "passive") return 0;
  return policy == "active" ? 10e-3 : 40e-6;
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

/// Limits the size of the team while the scheduler preempts members inside jobs: halves it for a
/// while, then tries the full size again.
class PreemptionMonitor {
 public:
  /// Returns the limit on the members of a job that begins now.
  int most_members(double now) const { return now < limited_until_ ? most_ : kMostMembers; }

  /// Records a job of `members` threads that took `seconds` and ended at `now`. During `preempted`
  /// of them the leader slept and a member inside the job was off its processor.
  void record(double now, int members, double seconds, double preempted) {
    seconds_ += seconds;
    preempted_ += preempted;
    if (preempted_ > kLeast && preempted_ > kShare * seconds_) {
      most_ = std::max(1, std::min(members, most_members(now)) / 2);
      limited_until_ = now + length_;
      length_ = std::min(2 * length_, kLongest);
      seconds_ = preempted_ = 0;
    } else if (seconds_ > kWindow) {
      seconds_ = preempted_ = 0;
      if (now >= limited_until_) length_ = kShortest;
    }
  }

 private:
  static constexpr double kLeast = 1e-3;    // seconds of preemption that are always tolerated
  static constexpr double kShare = 0.2;     // tolerated share of the time spent in jobs
  static constexpr double kWindow = 20e-3;  // seconds in jobs after which both sums restart
  static constexpr double kShortest = 50e-3, kLongest = 400e-3;  // seconds that a limit lasts

  double seconds_ = 0, preempted_ = 0;
  double limited_until_ = 0, length_ = kShortest;
  int most_ = kMostMembers;
};

BRRR_THREAD_LOCAL bool at_work = false;
BRRR_THREAD_LOCAL int own_slot = 0;

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
  thread_team::RunPiece run_piece = nullptr;
  const void* work = nullptr;
  int64_t first = 0, pieces = 0;  // those of [first, first + pieces)
  bool has_preferences = false;   // pieces are claimed by `unclaimed`, else by `next`
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
class Team {
 public:
  /// Never destroyed: workers may poll it while the process ends.
  static Team& get() {
    static Team* const team = new Team;
    return *team;
  }

  void run(int64_t pieces, int members, thread_team::RunPiece run_piece, const void* work) {
    // Before each piece that runs on this thread alone, check again whether the team is available:
    // another leader may have finished, or the limit may have expired.
    for (int64_t first = 0; first < pieces; ++first) {
      const std::unique_lock leading(leading_, std::try_to_lock);
      const int most =
          leading.owns_lock() ? std::min(members, monitor_.most_members(now_seconds())) : 1;
      if (most > 1 && pieces - first > 1)
        return lead({run_piece, work, first, pieces - first}, most);
      const AtWork here(0);
      run_piece(work, first, 0);
    }
  }

 private:
  struct alignas(64) Worker {
    std::atomic<uint32_t> asleep{0};
    std::atomic<bool> is_inside{false};
    std::atomic<double> left_at{0};  // when it left a job
    clockid_t processor_clock = CLOCK_THREAD_CPUTIME_ID;
    double run_before = 0;  // the leader's note of seconds_run()

    void wake() {
      if (asleep.load(std::memory_order_seq_cst) == 0) return;
      asleep.store(0, std::memory_order_seq_cst);
      asleep.notify_one();
    }
    /// Returns the processor time of the thread in seconds.
    double seconds_run() const {
      timespec t{};
      ::clock_gettime(processor_clock, &t);
      return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    }
  };

  Gate gate(std::memory_order order) const { return {gate_.load(order)}; }

  /// Publishes a job, takes part in it and waits for its members.
  void lead(Job job, int members) {
    const double begin = now_seconds();
    members = static_cast<int>(std::min<int64_t>(members, job.pieces));
    start_workers(members - 1, begin);
    job.has_preferences = job.pieces <= std::min(members, 64);
    job_ = job;
    next_.store(0, std::memory_order_relaxed);
    unclaimed_.store(job.has_preferences ? ~uint64_t{0} >> (64 - job.pieces) : 0,
                     std::memory_order_relaxed);
    gate_.store(Gate::opened(++number_, members).word, std::memory_order_seq_cst);
    for (size_t i = 0; i + 1 < static_cast<size_t>(members) && i < workers_.size(); ++i)
      workers_[i].wake();
    take_pieces(0);
    const double preempted = wait_for_members();
    const double end = now_seconds();
    monitor_.record(end, members, end - begin, preempted);
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  /// Starts threads until the team has `count` workers. If the system refuses a thread, the team
  /// stays smaller and the next attempt comes a second later.
  void start_workers(int count, double now) {
    if (now < refused_until_) return;
    while (workers_.size() < static_cast<size_t>(count)) {
      const int slot = static_cast<int>(workers_.size()) + 1;
      try {
        Worker& worker = workers_.emplace_back();
        std::thread thread([this, &worker, slot, job = number_] { serve(worker, slot, job); });
        ::pthread_getcpuclockid(thread.native_handle(), &worker.processor_clock);
        thread.detach();
      } catch (...) {
        if (workers_.size() == static_cast<size_t>(slot)) workers_.pop_back();
        refused_until_ = now + 1;
        return;
      }
    }
  }

  /// Main loop of a worker thread. `seen` is the number of the last job that it took part in or
  /// skipped.
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
        idle_since = now_seconds();
        self.left_at.store(idle_since, std::memory_order_relaxed);
        self.is_inside.store(false, std::memory_order_relaxed);
        gate.word = gate_.fetch_sub(Gate::kOneInside, std::memory_order_seq_cst);
        if (!gate.is_open() && gate.inside() == 1) {
          leader_asleep_.store(0);
          leader_asleep_.notify_one();
        }
        break;
      }
    }
  }

  Gate wait_for_job(Worker& self, uint32_t seen, double idle_since) {
    const auto is_new = [&] { return gate(std::memory_order_acquire).job() != seen; };
    if (!poll(idle_since + spin_seconds_ - now_seconds(), is_new)) {
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
      for (int64_t piece; (piece = claim(slot)) >= 0;)
        job_.run_piece(job_.work, job_.first + piece, slot);
    } catch (...) {
      const std::lock_guard lock(failing_);
      if (failure_ == nullptr) failure_ = std::current_exception();
      next_.store(job_.pieces, std::memory_order_relaxed);
      unclaimed_.store(0, std::memory_order_relaxed);
    }
  }

  /// Closes the gate and waits until all workers have left. Returns the longest time that a worker
  /// spent inside, off its processor, while the leader slept.
  double wait_for_members() noexcept {
    gate_.fetch_and(~Gate::kOpen, std::memory_order_seq_cst);
    const auto is_empty = [&] { return gate(std::memory_order_acquire).inside() == 0; };
    if (poll(spin_seconds_, is_empty)) return 0;
    const double begin = now_seconds();
    constexpr double kNotInside = -1;
    for (Worker& worker : workers_)
      worker.run_before =
          worker.is_inside.load(std::memory_order_relaxed) ? worker.seconds_run() : kNotInside;
    for (;;) {
      leader_asleep_.store(1);
      if (gate(std::memory_order_seq_cst).inside() == 0) break;
      leader_asleep_.wait(1);
      if (is_empty()) break;
    }
    leader_asleep_.store(0);
    double longest = 0;
    for (const Worker& worker : workers_) {
      if (worker.run_before == kNotInside) continue;
      const double inside = worker.left_at.load(std::memory_order_relaxed) - begin;
      longest = std::max(longest, inside - (worker.seconds_run() - worker.run_before));
    }
    return longest;
  }

  std::mutex leading_;  // held by the leader for the length of a job
  std::deque<Worker> workers_;
  Job job_;
  uint32_t number_ = 0;
  PreemptionMonitor monitor_;
  double refused_until_ = 0;
  const double spin_seconds_ = read_spin_seconds();
  std::mutex failing_;
  std::exception_ptr failure_;
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  std::atomic<uint64_t> unclaimed_{0};
  alignas(64) std::atomic<uint32_t> leader_asleep_{0};
};

/// Returns the first number in OMP_NUM_THREADS if it is positive, else usable_processors().
int first_thread_count() {
  const std::string given = env::get("OMP_NUM_THREADS").value_or("");
  char* end = nullptr;
  const long threads = std::strtol(given.c_str(), &end, 10);
  while (*end == ' ' || *end == '\t') ++end;
  if (threads > 0 && (*end == '\0' || *end == ','))
    return static_cast<int>(std::min<long>(threads, std::numeric_limits<int>::max()));
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

void thread_team::run(int64_t pieces, int members, RunPiece run_piece, const void* work) {
  Team::get().run(pieces, members, run_piece, work);
}
bool thread_team::is_at_work() { return at_work; }
int thread_team::slot() { return own_slot; }

}  // namespace brrr
