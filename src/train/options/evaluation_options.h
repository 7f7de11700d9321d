#pragma once
// The options of evaluations: which validation data there is, and what chooses the best weights.

#include <string>

#include "train/options.h"

namespace brrr::train {

/// Switches --load-best-model-at-end off where there is no validation, unless it was given.
void fill_evaluation(TrainOptions& options);
/// Throws UserError (exit 2) for a --metric-for-best-model or --greater-is-better that the task
/// lacks, and for --load-best-model-at-end without validation. The options of a resumed run must
/// have been merged with its record before (merge_for_resume).
void validate_evaluation(const TrainOptions& options);

/// Returns the note that the validation set of `data` is not read, because --val-fraction is 0.
std::string unread_validation(const std::string& data);

}  // namespace brrr::train
