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

/// The options of a rank that was started with these: as they are at the first start, else with
/// what makes it go on where the launcher says. `memory`: of that launcher; without one, throws
/// UserError (exit 2) for options that need it.
TrainOptions options_of_rank(const TrainOptions& given,
                             const std::optional<LauncherMemory>& memory);

}  // namespace brrr::train
