#pragma once
// `brrr launch --elastic --hosts`: mpirun is started again after a rank or a host was lost, with
// the hosts that answer, from the newest checkpoint on disk.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/launch/mpirun.h"
#include "train/options.h"

namespace brrr::cli {

struct ElasticHosts {
  std::vector<HostRanks> hosts;      // the first is this one
  std::vector<std::string> command;  // `train` and what follows it
  train::TrainOptions options;       // which that means
  int64_t max_restarts = 0;
};

/// Passes signals on, and returns the exit code of the last mpirun, 128 + N where signal N ended
/// it. Throws UserError (usage) for options that do not go with several hosts.
int run_elastic_hosts(ElasticHosts plan);

}  // namespace brrr::cli
