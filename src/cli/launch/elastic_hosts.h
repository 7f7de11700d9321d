#pragma once
// `brrr launch --elastic --hosts`: starts mpirun again after a rank or a host was lost. The ranks
// run on the hosts that answer and go on from the newest checkpoint on disk.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/launch/mpirun.h"
#include "train/options.h"

namespace brrr::cli {

struct ElasticHosts {
  std::vector<HostRanks> hosts;      // this host first
  std::vector<std::string> command;  // `train` and its arguments
  train::TrainOptions options;       // the options that `command` gives
  int64_t max_restarts = 0;
};

/// Runs the plan and passes signals on. Returns the exit code of the last mpirun, or 128 + N if
/// signal N ended the run. Throws UserError (usage) for options that need ranks of one host.
int run_elastic_hosts(ElasticHosts plan);

}  // namespace brrr::cli
