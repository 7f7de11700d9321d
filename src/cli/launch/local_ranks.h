#pragma once
// The ranks that `brrr launch` starts on this host: processes of this program with torchrun's
// variables. What rank 0 says is said as it comes; what the others say is kept, and told where it
// explains why the run failed.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace brrr::cli {

struct LocalRanks {
  int ranks = 1;
  std::vector<std::string> command;          // the verb and what follows it
  bool binds = false;                        // each rank to its share of the processors
  std::optional<int64_t> max_restarts = {};  // --elastic: how often lost ranks are started again
  double timeout_seconds = 0;  // after which a stopped rank is killed; 0: the transports' default
};

/// Starts them, passes signals on, and waits until all have ended; after a failure of one the rest
/// is ended. With max_restarts all are then started again, if a rank was lost. Returns the exit
/// code of the rank that failed first, 128 + N where signal N ended it.
int run_local_ranks(const LocalRanks& ranks);

}  // namespace brrr::cli
