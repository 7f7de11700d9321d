#pragma once
// The options of evaluations: which validation data there is, and what chooses the best weights.

#include <string>

#include "train/options.h"

namespace brrr::train {

/// Switches --load-best-model-at-end off where there is no validation, unless it was given.
void fill_evaluation(TrainOptions& options);
/// Throws UserError (exit 2) for a --metric-for-best-model or --greater-is-better that the task
/// lacks, and for --load-best-model-at-end without validation. For a resumed run, `options` are
/// those that the record and the command line give together.
void validate_evaluation(const TrainOptions& options);

/// The note of a run with --val-fraction 0 whose data have a validation set.
std::string unread_validation(const std::string& data);

}  // namespace brrr::train
