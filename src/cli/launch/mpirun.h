#pragma once
// Ranks on several hosts, which mpirun starts.

#include <cstdint>
#include <string>
#include <vector>

namespace brrr::cli {

struct HostRanks {
  std::string name;
  int64_t ranks = 1;
};
/// From "a,b" or "a:4,b:2". `ranks`: of all hosts together, dealt evenly to hosts without a number
/// of their own; 0: one for each. Throws UserError (usage) where they do not fit.
std::vector<HostRanks> parse_hosts(const std::string& text, int64_t ranks);

/// How mpirun is called, by what `mpirun --version` said. `command`: the program and its arguments.
std::vector<std::string> mpirun_command(const std::vector<HostRanks>& hosts,
                                        const std::string& version,
                                        const std::vector<std::string>& command);

/// Becomes mpirun, or throws UserError where there is none.
[[noreturn]] void run_on_hosts(const std::vector<HostRanks>& hosts,
                               const std::vector<std::string>& verb_and_arguments);

}  // namespace brrr::cli
