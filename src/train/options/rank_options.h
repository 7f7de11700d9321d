#pragma once
// The options of runs on several ranks.

#include "train/options.h"

namespace brrr::train {

/// Appends the group "ranks".
void add_rank_rows(OptionTable<TrainOptions>& table);
/// Throws UserError (exit 2) for ranks and stages that do not go with the other options.
void validate_ranks(const TrainOptions& options);

}  // namespace brrr::train
