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

/// The hosts with `ranks` in all, dealt out in turn, none of them more than it has here.
std::vector<HostRanks> deal_ranks(const std::vector<HostRanks>& hosts, int64_t ranks);
int64_t total_ranks(const std::vector<HostRanks>& hosts);

/// What `mpirun --version` prints. Throws UserError (usage) where there is no such program.
std::string version_of_mpirun();
/// How mpirun is called, by what `mpirun --version` said. `command`: the program and its arguments.
std::vector<std::string> mpirun_command(const std::vector<HostRanks>& hosts,
                                        const std::string& version,
                                        const std::vector<std::string>& command);

/// The verb and its arguments, with this program in front.
std::vector<std::string> with_own_program(const std::vector<std::string>& verb_and_arguments);
/// Becomes the program that the first word names; returns if there is none, errno saying why.
void become_program(std::vector<std::string> words);
/// Becomes mpirun, or throws UserError where there is none.
[[noreturn]] void run_on_hosts(const std::vector<HostRanks>& hosts,
                               const std::vector<std::string>& verb_and_arguments);

}  // namespace brrr::cli
