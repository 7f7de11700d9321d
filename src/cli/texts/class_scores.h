#pragma once
// Converts the logits of a classifier to probabilities.

#include <span>
#include <vector>

#include "models/task.h"

namespace brrr::cli {

/// Returns the softmax of the logits, or, for multi-label tasks (task.several), their sigmoids. The
/// outputs of a regression are returned unchanged.
std::vector<double> probabilities_of(std::span<const float> logits, const models::Task& task);

}  // namespace brrr::cli
