#pragma once
// Ranks on several hosts, which mpirun starts.

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
/// Starts mpirun as a child that ends with this process. `prepare` runs in the child and returns
/// the command line; it may change the environment, which mpirun_command() reads. Throws
/// std::system_error if no process can be started.
pid_t start_mpirun(const LauncherSignals& signals,
                   const std::function<std::vector<std::string>()>& prepare);
/// Kills a process, and all that it and its children started here.
void kill_with_descendants(pid_t process);

/// Runs the verb by mpirun, and passes signals on. Returns the exit code of mpirun, or 128 + N if
/// signal N ended the run. mpirun is killed, and kLostRankExit returned, if it still runs
/// `timeout_seconds` and 10 s more after the last rank of this host ended; 0: the default of
/// --rank-timeout. Throws UserError (usage) if there is no mpirun.
int run_on_hosts(const std::vector<HostRanks>& hosts,
                 const std::vector<std::string>& verb_and_arguments, double timeout_seconds);

}  // namespace brrr::cli
