#include "cli/launch/elastic_hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "base/human.h"
#include "base/tell.h"
#include "cli/launch/launcher_signals.h"
#include "cli/launch/mpirun_output.h"
#include "cli/launch/process_end.h"
#include "cli/launch/restarts.h"
#include "runtime/ranks/processes.h"
#include "runtime/ranks/transport.h"
#include "train/elastic/elastic.h"
#include "train/trainer.h"

namespace brrr::cli {
namespace {

// Time limits in seconds:
constexpr double kJoin = 60;           // for all ranks to connect
constexpr double kEndAfterRank = 10;   // for mpirun to end after rank 0
constexpr double kEndAfterMpirun = 3;  // for rank 0 to end after mpirun
constexpr double kAnswer = 10;         // for a host to start a program that does nothing

/// Starts a program that reads nothing and whose output is discarded.
pid_t start_silent(const std::vector<std::string>& words, const LauncherSignals& signals) {
  const pid_t parent = ::getpid(), child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::setpgid(0, 0);
  signals.restore_mask();
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, stream);
  become_program(words);
  ::_exit(127);
}

class HostsLaunch {
 public:
  explicit HostsLaunch(ElasticHosts plan)
      : plan_(std::move(plan)),
        version_(version_of_mpirun()),
        restarts_(plan_.max_restarts),
        current_(plan_.hosts) {}

  int run() {
    for (;;) {
      run_mpirun();
      const std::optional<std::string> lost = what_was_lost();
      if (!lost) break;
      if (!restarts_.again(*lost, [&] { return find_left(); })) return exit_code();
      if (signals_.last() != 0) return 128 + signals_.last();
    }
    if (signals_.last() == 0 && status_ != 0) output_.tell_blocks();
    return exit_code();
  }

 private:
  const LauncherMemory& memory() const { return restarts_.memory(); }
  int exit_code() const { return signals_.exit_code(code_of(status_)); }

  // ---- one mpirun

  void run_mpirun() {
    output_ = {};
    status_ = 0;
    is_too_late_ = is_stuck_ = false;
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw std::system_error(errno, std::generic_category(), "cannot start mpirun");
    const std::string path = memory().path();  // names this process, so the child cannot ask
    mpirun_ = start_mpirun(signals_, [&] {
      ::dup2(ends[1], STDERR_FILENO);
      ::setenv("BRRR_LAUNCHER_MEMORY", path.c_str(), 1);
      return mpirun_command(current_, version_, with_own_program(plan_.command));
    });
    ::close(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const Stopwatch since_start;
    std::optional<Stopwatch> since_end;  // since rank 0 ended
    while (::waitpid(mpirun_, &status_, WNOHANG) != mpirun_) {
      pollfd events[] = {{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0},
                         {.fd = ends[0], .events = POLLIN, .revents = 0}};
      ::poll(events, 2, 200);
      read_signals();
      read_output(ends[0]);
      if (!since_end && has_rank_ended()) since_end.emplace();
      is_too_late_ = memory().joined_process() == 0 && since_start.seconds() > kJoin;
      is_stuck_ = since_end && since_end->seconds() > kEndAfterRank;
      if (is_too_late_ || is_stuck_) kill_with_descendants(mpirun_);
    }
    mpirun_ = 0;
    await_end_of_rank();
    read_output(ends[0]);
    ::close(ends[0]);
    read_signals();
  }

  void read_output(int from) {
    char buffer[4096];
    for (ssize_t bytes = 0; (bytes = ::read(from, buffer, sizeof buffer)) > 0;)
      output_.add({buffer, static_cast<size_t>(bytes)});
  }

  void read_signals() {
    signals_.read([&](int signal) {
      if (mpirun_ > 0) ::kill(mpirun_, signal);
    });
  }

  bool has_rank_ended() const {
    const int32_t process = memory().joined_process();
    if (process == 0) return false;
    const char state = process_state(process);
    return state == 0 || state == 'Z' || memory().end() != LauncherMemory::End::unknown;
  }

  /// Waits for rank 0, which may outlive an mpirun that was killed and holds the lock of the run's
  /// folder.
  void await_end_of_rank() const {
    const int32_t process = memory().joined_process();
    if (process == 0) return;
    for (const Stopwatch watch; process_state(process) != 0 && watch.seconds() < kEndAfterMpirun;)
      ::usleep(10000);
    if (process_state(process) != 0) ::kill(process, SIGKILL);
  }

  // ---- what happened

  /// Describes the rank that was lost and how. Returns nothing if the run ended for a reason that
  /// would end it again.
  std::optional<std::string> what_was_lost() const {
    const int code = code_of(status_);
    if (code == 0 || code == static_cast<int>(ExitCode::kUsage) || signals_.last() != 0) return {};
    if (const auto killed = output_.killed())
      return lost_by_signal(name_of(*killed), static_cast<int>(killed->signal));
    if (memory().end() == LauncherMemory::End::lost) {
      const std::string sentence = memory().end_sentence();
      return sentence.substr(0, sentence.find(';'));  // what to do follows
    }
    if (is_too_late_) return fmt::format("the ranks did not come together within {:.0f} s", kJoin);
    if (code == static_cast<int>(ExitCode::kNoMemory) && restarts_.has_begun())
      return "a rank ran out of memory";
    if (memory().end() == LauncherMemory::End::failed) return {};
    // If the run was complete, the restarted ranks find nothing to do.
    if (is_stuck_) return "mpirun did not end after rank 0";
    if (WIFSIGNALED(status_)) return lost_by_signal("mpirun", WTERMSIG(status_));
    if (code == static_cast<int>(kLostRankExit)) return "a rank lost the others";
    if (output_.lost_a_daemon()) return "the daemon of mpirun on a host ended";
    // MPICH reports the signal on standard output, which is not read here.
    if (code > 128 + kMostSignals) return fmt::format("mpirun ended with code {}", code);
    if (code > 128) return lost_by_signal("a rank", code - 128);
    return {};
  }

  std::string name_of(const MpirunOutput::Killed& killed) const {
    // Open MPI 4.1 often lacks the process number of a rank on mpirun's own host.
    const int64_t process =
        killed.process == 0 && killed.rank == 0 ? memory().joined_process() : killed.process;
    const std::string name = fmt::format("rank {} on {}", killed.rank, killed.host);
    return process == 0 ? name : fmt::format("{} (process {})", name, process);
  }

  static std::optional<std::string> lost_by_signal(const std::string& who, int signal) {
    if (asks_for_the_end(signal)) return {};
    return fmt::format("{} {}", who, ended_by_signal(signal));
  }

  // ---- what is left

  Restarts::Left find_left() {
    std::vector<HostRanks> answer;
    std::vector<std::string> silent;
    const std::vector<bool> answers = ask_hosts();
    for (size_t host = 0; host < plan_.hosts.size(); ++host)
      if (answers[host])
        answer.push_back(plan_.hosts[host]);
      else
        silent.push_back(plan_.hosts[host].name);
    const int64_t ranks = train::most_ranks(options_of_run(), total_ranks(answer));
    current_ = deal_ranks(answer, ranks);
    return {static_cast<int>(ranks),
            silent.empty() ? ""
                           : fmt::format("; {} {} not answer and {} left out", listed(silent),
                                         silent.size() == 1 ? "does" : "do",
                                         silent.size() == 1 ? "is" : "are")};
  }

  /// Asks each host to start a program by mpirun, as it would start ranks; returns which ones did.
  std::vector<bool> ask_hosts() {
    std::vector<pid_t> asked(plan_.hosts.size());
    std::vector<bool> answers(plan_.hosts.size());
    answers[0] = true;
    for (size_t host = 1; host < asked.size(); ++host)
      asked[host] =
          start_silent(mpirun_command({{plan_.hosts[host].name, 1}}, version_, {"true"}), signals_);
    const auto has_ended = [&](size_t host) {
      int status = 0;
      if (::waitpid(asked[host], &status, WNOHANG) != asked[host]) return false;
      answers[host] = status == 0;
      asked[host] = 0;
      return true;
    };
    size_t waiting = asked.size() - 1;
    for (const Stopwatch watch; waiting > 0 && watch.seconds() < kAnswer && signals_.last() == 0;) {
      ::usleep(20000);
      read_signals();
      for (size_t host = 1; host < asked.size(); ++host)
        if (asked[host] > 0 && has_ended(host)) --waiting;
    }
    for (const pid_t process : asked)
      if (process > 0) {
        kill_with_descendants(process);
        ::waitpid(process, nullptr, 0);
      }
    return answers;
  }

  /// The options as the run recorded them, or those of the command line if it has not done so yet.
  train::TrainOptions options_of_run() const {
    train::TrainOptions options = plan_.options;
    fs::path folder = memory().folder();
    try {
      if (folder.empty() && options.wants_resume())
        folder = train::find_resume_point(options).checkpoint;
      if (folder.empty()) return options;
      const fs::path record = folder / "train_config.json";
      return train::options_from_json(read_file(record), record.string());
    } catch (const UserError&) {  // the ranks will report the error
      return options;
    }
  }

  const ElasticHosts plan_;
  const std::string version_;
  Restarts restarts_;
  std::vector<HostRanks> current_;
  MpirunOutput output_;
  LauncherSignals signals_;
  pid_t mpirun_ = 0;
  int status_ = 0;  // of mpirun, from waitpid()
  // Whether mpirun was killed because the ranks did not connect, or because it outlived rank 0.
  bool is_too_late_ = false, is_stuck_ = false;
};

}  // namespace

int run_elastic_hosts(ElasticHosts plan) {
  const train::TrainOptions& options = plan.options;
  if (options.ranks > 1)
    usage_error("--ranks {}: --hosts says how many ranks there are; leave --ranks out",
                options.ranks);
  train::ElasticStart start;
  start.is_elastic = start.is_on_several_hosts = true;
  train::options_of_rank(options, start);  // refuses options that need ranks of one host
  if (options.peer_checkpoint_steps < 0)
    tell(
        "note: peer checkpoints are for ranks of one host; lost ranks go on from the checkpoints "
        "of --save-steps\n");
  const auto ranks = static_cast<uint64_t>(total_ranks(plan.hosts));
  // Fix the number of slots, so that fewer ranks later give the same bits.
  if (!options.wants_resume() && options.deterministic_ranks == 0 && ranks > 1 &&
      std::has_single_bit(ranks)) {
    plan.command.push_back(fmt::format("--deterministic-ranks={}", ranks));
    plan.options.deterministic_ranks = static_cast<int64_t>(ranks);
  }
  return HostsLaunch(std::move(plan)).run();
}

}  // namespace brrr::cli
