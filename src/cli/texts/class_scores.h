#pragma once
// The logits of a classifier as probabilities.

#include <span>
#include <vector>

#include "models/task.h"

namespace brrr::cli {

/// The probabilities of classes: softmax, or of task.several sigmoid. Values stay as they are.
std::vector<double> probabilities_of(std::span<const float> logits, const models::Task& task);

}  // namespace brrr::cli
