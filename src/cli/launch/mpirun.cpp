#include "cli/launch/mpirun.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/file.h"
#include "base/options.h"
#include "base/system_text.h"
#include "base/tell.h"
#include "cli/launch/process_end.h"
#include "runtime/ranks/place.h"
#include "runtime/ranks/transports.h"

namespace brrr::cli {
namespace {

bool is_host_name(std::string_view name) {
  return !name.empty() && name[0] != '-' && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
}

/// Returns the output of `mpirun --version`; "" if there is no such program.
std::string mpirun_version() {
  FILE* pipe = ::popen("mpirun --version 2>/dev/null", "r");
  if (pipe == nullptr) return "";
  std::string text;
  char buffer[512];
  for (size_t bytes = 0; (bytes = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    text.append(buffer, bytes);
  return ::pclose(pipe) == 0 ? text : "";
}

}  // namespace

int64_t total_ranks(const std::vector<HostRanks>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), int64_t{0},
                         [](int64_t sum, const HostRanks& host) { return sum + host.ranks; });
}

std::vector<HostRanks> deal_ranks(const std::vector<HostRanks>& hosts, int64_t ranks) {
  std::vector<HostRanks> dealt = hosts;
  for (HostRanks& host : dealt) host.ranks = 0;
  ranks = std::min(ranks, total_ranks(hosts));
  for (size_t at = 0; ranks > 0; at = (at + 1) % hosts.size()) {
    if (dealt[at].ranks == hosts[at].ranks) continue;
    ++dealt[at].ranks;
    --ranks;
  }
  std::erase_if(dealt, [](const HostRanks& host) { return host.ranks == 0; });
  return dealt;
}

std::string version_of_mpirun() {
  std::string version = mpirun_version();
  if (version.empty())
    usage_error(
        "--hosts needs mpirun, which is not in PATH; Debian and Ubuntu have it in the package "
        "openmpi-bin (or mpich), on every host");
  return version;
}

std::vector<std::string> with_own_program(const std::vector<std::string>& verb_and_arguments) {
  std::vector<std::string> command{fs::read_symlink("/proc/self/exe").string()};
  command.insert(command.end(), verb_and_arguments.begin(), verb_and_arguments.end());
  return command;
}

void become_program(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
}

std::vector<HostRanks> parse_hosts(const std::string& text, int64_t ranks) {
  std::vector<HostRanks> hosts;
  bool has_numbers = false;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string entry = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t colon = entry.find(':');
    HostRanks host{.name = entry.substr(0, colon)};
    if (!is_host_name(host.name))
      usage_error("--hosts: expected names of hosts, such as a,b or a:4,b:4; got '{}'", text);
    if (colon != std::string::npos) {
      has_numbers = true;
      host.ranks = parse_integer(entry.substr(colon + 1), 1, kMostRanksOfARun);
    }
    for (const HostRanks& other : hosts)
      if (other.name == host.name)
        usage_error("--hosts: {} is named twice; {}:2 starts two ranks on it", host.name,
                    host.name);
    hosts.push_back(host);
  }
  const auto count = std::ssize(hosts);
  if (ranks > 0 && !has_numbers) {
    if (ranks % count != 0)
      usage_error("{} processes cannot be dealt evenly to {} hosts; say how many each gets: {}:N",
                  ranks, count, hosts[0].name);
    for (HostRanks& host : hosts) host.ranks = ranks / count;
  }
  if (ranks > 0 && total_ranks(hosts) != ranks)
    usage_error("--processes is {}, but --hosts names {}; leave one of them out", ranks,
                total_ranks(hosts));
  return hosts;
}

std::vector<std::string> mpirun_command(const std::vector<HostRanks>& hosts,
                                        const std::string& version,
                                        const std::vector<std::string>& command) {
  std::vector<std::string> words{"mpirun", "-n", std::to_string(total_ranks(hosts))}, names;
  std::vector<std::string> variables;
  for (const env::Variable& v : env::all()) {
    const std::string_view name = v.name;
    if ((name.starts_with("BRRR_") || name.starts_with("OMP_")) && name != "BRRR_RUN_ID" &&
        env::get(v.name))
      variables.emplace_back(name);
  }
  const bool is_open_mpi = version.find("Open MPI") != std::string::npos ||
                           version.find("OpenRTE") != std::string::npos ||
                           version.find("open-mpi") != std::string::npos;
  for (const HostRanks& host : hosts) names.push_back(fmt::format("{}:{}", host.name, host.ranks));
  // No binding: the ranks of a host divide its processors among their threads themselves.
  if (is_open_mpi) {
    words.insert(words.end(),
                 {"--host", fmt::format("{}", fmt::join(names, ",")), "--bind-to", "none"});
    if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
    for (const std::string& name : variables) words.insert(words.end(), {"-x", name});
  } else {
    words.insert(words.end(),
                 {"-hosts", fmt::format("{}", fmt::join(names, ",")), "-bind-to", "none"});
    if (!variables.empty())
      words.insert(words.end(), {"-genvlist", fmt::format("{}", fmt::join(variables, ","))});
  }
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

pid_t start_mpirun(const LauncherSignals& signals,
                   const std::function<std::vector<std::string>()>& prepare) {
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "cannot start mpirun");
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);
  signals.restore_mask();
  become_program(prepare());
  ::_exit(127);
}

namespace {

/// Seconds that mpirun may need to end after the ranks of this host have noticed the end.
constexpr double kEndAfterRanks = 10;

void collect_descendants(pid_t process, std::vector<pid_t>& found) {
  std::istringstream children(
      system_text::read_or_empty(fmt::format("/proc/{0}/task/{0}/children", process)));
  for (pid_t child = 0; children >> child;) {
    found.push_back(child);
    collect_descendants(child, found);
  }
}

/// Whether processes below mpirun run this program.
bool has_ranks(pid_t mpirun) {
  std::vector<pid_t> all;
  collect_descendants(mpirun, all);
  std::error_code ignored;
  const fs::path own = fs::read_symlink("/proc/self/exe", ignored);
  return std::ranges::any_of(all, [&](pid_t process) {
    return fs::read_symlink(fmt::format("/proc/{}/exe", process), ignored) == own;
  });
}

}  // namespace

void kill_with_descendants(pid_t process) {
  std::vector<pid_t> all{process};
  collect_descendants(process, all);
  for (const pid_t each : all) ::kill(each, SIGKILL);
}

int run_on_hosts(const std::vector<HostRanks>& hosts,
                 const std::vector<std::string>& verb_and_arguments, double timeout_seconds) {
  const std::string version = version_of_mpirun();
  LauncherSignals signals;
  const pid_t mpirun = start_mpirun(signals, [&] {
    return mpirun_command(hosts, version, with_own_program(verb_and_arguments));
  });
  const double limit = ranks::timeout_seconds(timeout_seconds) + kEndAfterRanks;
  bool had_ranks = false, is_stuck = false;
  Stopwatch since_ranks;
  int status = 0;
  while (::waitpid(mpirun, &status, WNOHANG) != mpirun) {
    pollfd event{.fd = signals.descriptor(), .events = POLLIN, .revents = 0};
    ::poll(&event, 1, 1000);
    signals.read([&](int signal) { ::kill(mpirun, signal); });
    if (has_ranks(mpirun)) {
      had_ranks = true;
      since_ranks.restart();
    }
    if (is_stuck || !had_ranks || since_ranks.seconds() < limit) continue;
    is_stuck = true;
    tell(
        "brrr: mpirun has not ended for {:.0f} s after the ranks of this host and is killed: see "
        "whether another host is cut off\n",
        limit);
    kill_with_descendants(mpirun);
  }
  return is_stuck ? static_cast<int>(kLostRankExit) : signals.exit_code(code_of(status));
}

}  // namespace brrr::cli
