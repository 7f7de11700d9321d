#include "cli/launch/local_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/env.h"
#include "base/tell.h"
#include "base/threads/thread_team.h"
#include "cli/launch/launcher_signals.h"
#include "cli/launch/process_end.h"
#include "cli/launch/restarts.h"
#include "runtime/ranks/processes.h"
#include "runtime/ranks/transports.h"

namespace brrr::cli {
namespace {

/// Bytes that are kept of the end of a rank's output.
constexpr size_t kKeptBytes = 32 << 10;
// Seconds after the first failure until
constexpr double kKillStopped = 1;  // stopped ranks are killed
constexpr double kAskToEnd = 2;     // the others are asked to end
constexpr double kKillAll = 8;      // the others are killed
constexpr double kKillLost = 0.1;   // the others are killed, if all ranks are started again

struct Rank {
  pid_t pid = 0;
  int output = -1;  // a pipe from the rank's output; -1: none
  std::string kept;
  bool lost_its_beginning = false;
  std::optional<int> status;  // from waitpid(), once it has ended
  int place_of_end = 0;       // 1 for the first rank to end
  bool is_asked_to_end = false;
  bool is_killed = false, was_stopped = false;  // was_stopped: at the time when it was killed
  double stopped_seconds = 0;                   // how long it has been stopped
};

bool is_stopped(pid_t pid) { return process_state(static_cast<int32_t>(pid)) == 'T'; }

/// Binds the process to its rank's share of the processors, unless ranks outnumber processors.
void bind_to_share(int rank, int ranks) {
  cpu_set_t all, share;
  CPU_ZERO(&share);
  if (::sched_getaffinity(0, sizeof all, &all) != 0) return;
  const int count = CPU_COUNT(&all);
  int at = 0;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    if (at >= count * rank / ranks && at < count * (rank + 1) / ranks) CPU_SET(cpu, &share);
    ++at;
  }
  if (CPU_COUNT(&share) > 0) ::sched_setaffinity(0, sizeof share, &share);
}

class Launch {
 public:
  explicit Launch(const LocalRanks& plan) : plan_(plan) {
    if (plan.max_restarts) restarts_.emplace(*plan.max_restarts);
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch() { end_all(); }

  int run() {
    for (;;) {
      run_once();
      read_signals();
      if (!restarts_ || !starts_again()) return report();
    }
  }

 private:
  void end_all() {
    for (const Rank& rank : ranks_) {
      if (rank.pid > 0 && !rank.status) {
        ::kill(rank.pid, SIGKILL);
        ::waitpid(rank.pid, nullptr, 0);
      }
      if (rank.output >= 0) ::close(rank.output);
    }
    if (!run_id_.empty()) ranks::remove_segment(run_id_);
  }

  void run_once() {
    end_all();
    ranks_ = std::vector<Rank>(static_cast<size_t>(plan_.ranks));
    run_id_ = fresh_run_id();
    first_failure_.reset();
    was_killed_ = false;
    ended_ = 0;
    for (int rank = 0; rank < plan_.ranks; ++rank) start(rank);
    while (is_anyone_alive()) {
      wait_for_events();
      end_stopped_ranks();
      if (first_failure_) end_the_rest();
    }
    for (Rank& rank : ranks_) read_output(rank);
  }

  std::string fresh_run_id() {
    const ProcessName own = own_process();
    return fmt::format("launch-{}-{}-{}", own.pid, own.start_ticks, ++starts_);
  }

  /// Returns the rank whose loss ended the run, or -1 if the run ended for a reason that would end
  /// it again after a restart, such as a usage error.
  int lost_rank() const {
    const int rank = culprit();
    if (rank < 0 || signals_.last() != 0) return -1;
    const int status = *ranks_[static_cast<size_t>(rank)].status, code = code_of(status);
    if (WIFSIGNALED(status)) return asks_for_the_end(WTERMSIG(status)) ? -1 : rank;
    if (code == static_cast<int>(ExitCode::kNoMemory)) return restarts_->has_begun() ? rank : -1;
    if (code != static_cast<int>(kLostRankExit)) return -1;
    const auto stopped = std::ranges::find_if(ranks_, [](const Rank& r) { return r.was_stopped; });
    return stopped == ranks_.end() ? rank : static_cast<int>(stopped - ranks_.begin());
  }

  bool starts_again() {
    const int rank = lost_rank();
    if (rank < 0) return false;
    const Rank& lost = ranks_[static_cast<size_t>(rank)];
    return restarts_->again(fmt::format("rank {} on {} (process {}) {}", rank, host_name(),
                                        lost.pid, what_happened(lost)),
                            [&] {
                              return Restarts::Left{plan_.ranks, ""};
                            });
  }

  std::string what_happened(const Rank& rank) const {
    const int status = *rank.status;
    if (rank.was_stopped)
      return fmt::format("was stopped for {:.0f} s, and therefore ended",
                         std::max(1.0, rank.stopped_seconds));
    if (WIFSIGNALED(status)) return ended_by_signal(WTERMSIG(status));
    if (code_of(status) == static_cast<int>(ExitCode::kNoMemory)) return "ran out of memory";
    return "lost the others";
  }

  void start(int number) {
    Rank& rank = ranks_[static_cast<size_t>(number)];
    int ends[2] = {-1, -1};
    if (number > 0 && ::pipe2(ends, O_CLOEXEC) != 0)
      throw std::system_error(errno, std::generic_category(), "cannot start a rank");
    const pid_t parent = ::getpid();
    rank.pid = ::fork();
    if (rank.pid < 0)
      throw std::system_error(errno, std::generic_category(), "cannot start a rank");
    if (rank.pid == 0) become(number, ends[1], parent);
    if (number > 0) {
      ::close(ends[1]);
      ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
      rank.output = ends[0];
    }
  }

  /// Runs in the child after fork(): becomes the rank's program, which the kernel kills when the
  /// launcher ends.
  [[noreturn]] void become(int number, int output, pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    signals_.restore_mask();
    const auto set = [](const char* name, const std::string& value) {
      ::setenv(name, value.c_str(), 1);
    };
    set("RANK", std::to_string(number));
    set("LOCAL_RANK", std::to_string(number));
    set("WORLD_SIZE", std::to_string(plan_.ranks));
    set("LOCAL_WORLD_SIZE", std::to_string(plan_.ranks));
    set("MASTER_ADDR", "127.0.0.1");
    set("BRRR_RUN_ID", run_id_);
    if (restarts_) set("BRRR_LAUNCHER_MEMORY", restarts_->memory().pass_on());
    if (!env::get("OMP_NUM_THREADS"))
      set("OMP_NUM_THREADS", std::to_string(std::max(1, usable_processors() / plan_.ranks)));
    if (plan_.binds) bind_to_share(number, plan_.ranks);
    if (number > 0) {
      ::dup2(output, STDOUT_FILENO);
      ::dup2(output, STDERR_FILENO);
      const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
    }
    std::vector<std::string> words{env::program()};
    words.insert(words.end(), plan_.command.begin(), plan_.command.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    ::execv("/proc/self/exe", arguments.data());
    ::_exit(127);
  }

  bool is_anyone_alive() const {
    return std::ranges::any_of(ranks_, [](const Rank& rank) { return !rank.status; });
  }

  void wait_for_events() {
    std::vector<pollfd> events{{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
    for (const Rank& rank : ranks_)
      if (rank.output >= 0) events.push_back({.fd = rank.output, .events = POLLIN, .revents = 0});
    ::poll(events.data(), events.size(), first_failure_ ? 100 : 1000);
    read_signals();
    for (Rank& rank : ranks_) {
      read_output(rank);
      int status = 0;
      if (rank.status || ::waitpid(rank.pid, &status, WNOHANG) != rank.pid) continue;
      rank.status = status;
      rank.place_of_end = ++ended_;
      if (status != 0 && !first_failure_) first_failure_.emplace();
      if (WIFSIGNALED(status) && !rank.is_asked_to_end) was_killed_ = true;
    }
  }

  void read_signals() {
    signals_.read([&](int signal) {
      for (const Rank& rank : ranks_)
        if (!rank.status) ::kill(rank.pid, signal);
    });
  }

  /// Kills ranks that have been stopped for too long. The other ranks notice them as well, but only
  /// after all ranks have connected.
  void end_stopped_ranks() {
    const double passed = std::min(step_.seconds(), 2.0);  // more: this process was stopped itself
    step_.restart();
    for (Rank& rank : ranks_) {
      if (rank.status || has_stopped_for_long(rank)) continue;
      rank.stopped_seconds = is_stopped(rank.pid) ? rank.stopped_seconds + passed : 0;
      if (has_stopped_for_long(rank)) end(rank, SIGKILL, true);
    }
  }

  bool has_stopped_for_long(const Rank& rank) const {
    return rank.stopped_seconds > stop_limit_seconds_;
  }

  void end_the_rest() {
    const double passed = first_failure_->seconds();
    const double kill_all = restarts_ && was_killed_ && signals_.last() == 0 ? kKillLost : kKillAll;
    for (Rank& rank : ranks_) {
      if (rank.status || rank.is_killed) continue;
      const bool stopped = is_stopped(rank.pid);
      if (passed > kill_all || (passed > kKillStopped && stopped))
        end(rank, SIGKILL, stopped);
      else if (passed > kAskToEnd && !rank.is_asked_to_end)
        end(rank, SIGTERM);
    }
  }

  static void end(Rank& rank, int number, bool is_stopped = false) {
    rank.is_asked_to_end = true;
    rank.is_killed = number == SIGKILL;
    rank.was_stopped = rank.was_stopped || is_stopped;
    ::kill(rank.pid, number);
  }

  /// Reads the pending output; of a long output, the end is kept.
  static void read_output(Rank& rank) {
    if (rank.output < 0) return;
    char buffer[4096];
    for (;;) {
      const ssize_t bytes = ::read(rank.output, buffer, sizeof buffer);
      if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (bytes <= 0) {
        ::close(rank.output);
        rank.output = -1;
        return;
      }
      rank.kept.append(buffer, static_cast<size_t>(bytes));
      if (rank.kept.size() < 2 * kKeptBytes) continue;
      const size_t line = rank.kept.find('\n', rank.kept.size() - kKeptBytes);
      rank.kept.erase(0, line == std::string::npos ? rank.kept.size() - kKeptBytes : line + 1);
      rank.lost_its_beginning = true;
    }
  }

  /// Finds the rank whose failure ended the run, or -1 if none failed. In order of preference: a
  /// rank that failed by itself (the first one to end), a rank that lost another one, a rank that
  /// this launcher ended (one that was stopped, if any).
  int culprit() const {
    int found = -1;
    std::pair<int, int> least;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const int code = code_of(*ranks_[rank].status);
      if (code == 0) continue;
      const int follows = ranks_[rank].is_asked_to_end              ? 2
                          : code == static_cast<int>(kLostRankExit) ? 1
                                                                    : 0;
      const int next = follows == 0   ? ranks_[rank].place_of_end
                       : follows == 1 ? 0
                                      : static_cast<int>(!ranks_[rank].was_stopped);
      const std::pair order{follows, next};
      if (found >= 0 && order >= least) continue;
      found = static_cast<int>(rank);
      least = order;
    }
    return found;
  }

  int report() const {
    const int rank = culprit();
    if (rank < 0) return 0;
    const Rank& failed = ranks_[static_cast<size_t>(rank)];
    const int status = *failed.status, code = code_of(status);
    // The reader of rank 0's output is gone; without launch the verb ends silently, too.
    if (rank == 0 && code == 128 + SIGPIPE) return code;
    if (signals_.last() != 0 && code == 128 + signals_.last()) return code;
    std::string_view text = failed.kept;
    if (failed.lost_its_beginning) tell("[rank {}] [...]\n", rank);
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      tell("[rank {}] {}\n", rank, fit_for_a_line(text.substr(0, end)));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (failed.was_stopped || WIFSIGNALED(status))
      if (!restarts_ || lost_rank() < 0)  // otherwise Restarts has printed it
        tell("brrr: rank {} (process {}) {}\n", rank, failed.pid, what_happened(failed));
    return code;
  }

  const LocalRanks& plan_;
  LauncherSignals signals_;
  std::optional<Restarts> restarts_;
  std::vector<Rank> ranks_;
  std::string run_id_;
  double stop_limit_seconds_ = ranks::timeout_seconds(plan_.timeout_seconds);
  Stopwatch step_;
  std::optional<Stopwatch> first_failure_;
  bool was_killed_ = false;  // a signal that this launcher did not send ended a rank
  int ended_ = 0;            // number of ranks that have ended
  int starts_ = 0;           // how often all ranks were started
};

}  // namespace

int run_local_ranks(const LocalRanks& ranks) { return Launch(ranks).run(); }

}  // namespace brrr::cli
