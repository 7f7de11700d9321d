#pragma once
// Runs whose lost ranks are started again (--elastic): from which state the launcher lets them go
// on, and the options that the restarted ranks get.

#include <string>

#include "runtime/ranks/launcher_memory.h"
#include "train/options.h"

namespace brrr::train {

/// Returns the newest state that the ranks can go on from: a checkpoint on disk or a peer
/// checkpoint. Damaged checkpoints are passed over with a line on stderr.
GoOn find_go_on(const LauncherMemory& memory);
/// "from step 140 in memory", "from the checkpoint of step 100", "from the beginning".
std::string text_of(const GoOn& go_on);

/// What an elastic launcher tells the ranks that it starts.
struct ElasticStart {
  bool is_elastic = false;           // whether `brrr launch --elastic` started this process
  bool is_on_several_hosts = false;  // whether mpirun did; there are no peer checkpoints then
  int restarts = 0;
  GoOn go_on;
  std::string folder;             // the run's folder, once its options are recorded
  bool is_place_checked = false;  // LauncherMemory::is_place_checked()
};
ElasticStart start_of(const LauncherMemory& memory);
std::string to_json(const ElasticStart& start);
ElasticStart elastic_start_from_json(const std::string& text);

/// Returns the options of a rank: those given at the first start; after a restart, options that
/// make it go on where the launcher says. Throws UserError (exit 2) for options that need another
/// launcher.
TrainOptions options_of_rank(const TrainOptions& given, const ElasticStart& start);

/// Returns the number of ranks with which a run goes on if there are `places` for them: the largest
/// that divides its slots (--deterministic-ranks) or, if it has none, the rows of a step.
int64_t most_ranks(const TrainOptions& options, int64_t places);

}  // namespace brrr::train
