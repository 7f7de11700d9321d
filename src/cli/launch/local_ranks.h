#pragma once
// The ranks that `brrr launch` starts on this host: processes of this program with torchrun's
// environment variables. The output of rank 0 is passed on. The end of each other rank's output is
// kept, and printed if that rank made the run fail.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace brrr::cli {

struct LocalRanks {
  int ranks = 1;
  std::vector<std::string> command;          // the verb and its arguments
  bool binds = false;                        // bind each rank to its share of the processors
  std::optional<int64_t> max_restarts = {};  // of --elastic; nothing: lost ranks end the run
  double timeout_seconds = 0;  // until a stopped rank is killed; 0: the transports' default
};

/// Starts the ranks, passes signals on, and waits until all have ended. If one fails, the others
/// are ended; with max_restarts, all ranks are then started again if a rank was lost. Returns the
/// exit code of the rank that failed first, 128 + N if signal N ended it.
int run_local_ranks(const LocalRanks& ranks);

}  // namespace brrr::cli
