#pragma once
// Starts ranks on several hosts by mpirun.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/launch/launcher_signals.h"

namespace brrr::cli {

struct HostRanks {
  std::string name;
  int64_t ranks = 1;
};
/// Parses "a,b" or "a:4,b:2". `ranks` is the total number of ranks; if the text has no numbers, it
/// is divided evenly among the hosts. 0: one rank on each host, or the numbers of the text. Throws
/// UserError (usage) if the numbers disagree.
std::vector<HostRanks> parse_hosts(const std::string& text, int64_t ranks);

/// Deals `ranks` ranks to the hosts in turn, to each at most the number that it has in `hosts`.
/// Hosts without a rank are left out.
std::vector<HostRanks> deal_ranks(const std::vector<HostRanks>& hosts, int64_t ranks);
int64_t total_ranks(const std::vector<HostRanks>& hosts);

/// Returns the output of `mpirun --version`. Throws UserError (usage) if there is no such program.
std::string version_of_mpirun();
/// The command line of mpirun for a version with this output. `command`: the program that it starts
/// and its arguments. Variables of Brrr and OpenMP that are set are passed on to the ranks.
std::vector<std::string> mpirun_command(const std::vector<HostRanks>& hosts,
                                        const std::string& version,
                                        const std::vector<std::string>& command);

/// Puts the path of this program in front of a verb and its arguments.
std::vector<std::string> with_own_program(const std::vector<std::string>& verb_and_arguments);
/// Replaces this process by the program that the first word names; returns, with errno set, if that
/// fails.
void become_program(std::vector<std::string> words);
/// Starts mpirun as a child that ends with this process. `prepare` runs in the child and returns
/// the command line; it may change the environment, which mpirun_command() reads. Throws
/// std::system_error if no process can be started.
pid_t start_mpirun(const LauncherSignals& signals,
                   const std::function<std::vector<std::string>()>& prepare);
/// Kills a process and its descendants on this host.
void kill_with_descendants(pid_t process);

/// Runs the verb by mpirun, and passes signals on. Returns the exit code of mpirun, or 128 + N if
/// signal N ended the run. mpirun is killed, and kLostRankExit returned, if it still runs
/// `timeout_seconds` and 10 s more after the last rank of this host ended; 0: the default of
/// --rank-timeout. Throws UserError (usage) if there is no mpirun.
int run_on_hosts(const std::vector<HostRanks>& hosts,
                 const std::vector<std::string>& verb_and_arguments, double timeout_seconds);

}  // namespace brrr::cli
