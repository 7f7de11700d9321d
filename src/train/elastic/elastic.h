#pragma once
// Runs whose lost ranks are started again (--elastic): what the launcher decides between two
// starts, and what the ranks do with it.

#include <string>

#include "runtime/ranks/launcher_memory.h"
#include "train/options.h"

namespace brrr::train {

/// Where the ranks of a run go on that is lost: the newest of what checkpoints on disk and peer
/// checkpoints hold. Damaged checkpoints are passed over with a line on stderr.
GoOn find_go_on(const LauncherMemory& memory);
/// "from step 140 in memory", "from the checkpoint of step 100", "from the beginning".
std::string text_of(const GoOn& go_on);

/// What the launcher tells the ranks that it starts.
struct ElasticStart {
  bool is_elastic = false;           // by `brrr launch --elastic`
  bool is_on_several_hosts = false;  // by mpirun: without peer checkpoints
  int restarts = 0;
  GoOn go_on;
  std::string folder;  // of the run, once its options are recorded
  bool is_place_checked = false;
};
ElasticStart start_of(const LauncherMemory& memory);
std::string to_json(const ElasticStart& start);
ElasticStart elastic_start_from_json(const std::string& text);

/// The options of a rank that was started with these: as they are at the first start, else with
/// what makes it go on where the launcher says. Throws UserError (exit 2) for options that need
/// another launcher.
TrainOptions options_of_rank(const TrainOptions& given, const ElasticStart& start);

/// How many ranks go on where `places` are left, of a run with these options: the most that divide
/// its slots (--deterministic-ranks), or the rows of a step where it has no slots.
int64_t most_ranks(const TrainOptions& options, int64_t places);

}  // namespace brrr::train
