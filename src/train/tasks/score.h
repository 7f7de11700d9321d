#pragma once
// What an evaluation gave: the loss, and what a task is judged by besides.

#include <cstdint>
#include <string>
#include <vector>

#include "train/tasks/metrics.h"

namespace brrr::train {

struct Score {
  double loss = 0;     // per target that is scored
  int64_t tokens = 0;  // such targets: tokens, or texts
  /// A task has some: the first decides which weights are best.
  std::vector<Metric> metrics = {};

  /// "loss 0.4321, accuracy 0.8765"
  std::string str() const;
  /// By the first metric, which is better where it is larger; without one by the loss.
  bool is_better_than(const Score& other) const;
};

}  // namespace brrr::train
