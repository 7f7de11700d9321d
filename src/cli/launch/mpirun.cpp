#include "cli/launch/mpirun.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "base/env.h"
#include "base/file.h"
#include "base/options.h"
#include "runtime/ranks/place.h"

namespace brrr::cli {
namespace {

bool is_host_name(std::string_view name) {
  return !name.empty() && name[0] != '-' && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
}

/// What `mpirun --version` prints; "" where there is no such program.
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
  // Ranks divide the processors of a host among their threads by themselves.
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

void run_on_hosts(const std::vector<HostRanks>& hosts,
                  const std::vector<std::string>& verb_and_arguments) {
  become_program(mpirun_command(hosts, version_of_mpirun(), with_own_program(verb_and_arguments)));
  user_error("cannot start mpirun: {}", std::strerror(errno));
}

}  // namespace brrr::cli
