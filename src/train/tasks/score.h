#pragma once
// What an evaluation gave: the loss, and what a task is judged by besides.

#include <cstdint>
#include <string>
#include <vector>

#include "data/labelled/metrics.h"

namespace brrr::train {

struct Score {
  double loss = 0;     // per target that is scored
  int64_t tokens = 0;  // such targets: tokens, or texts
  /// A task has some.
  std::vector<io::Metric> metrics = {};
  /// The metric, or "loss", that decides which weights are best. Empty: the first metric, or the
  /// loss where there is none.
  std::string decided_by = {};
  /// Names the targets and what they were predicted from: scores with equal names can be compared.
  /// "" if unknown.
  std::string set = {};

  /// "loss 0.4321, accuracy 0.8765 (majority class 0.6000), f1 0.8500"
  std::string str() const;
  /// Compares the metric that decides; if it is NaN in both, the loss.
  bool is_better_than(const Score& other) const;
  /// Whether both were measured on the same targets, as far as is known.
  bool is_comparable_to(const Score& other) const {
    return set.empty() || other.set.empty() || set == other.set;
  }
};

}  // namespace brrr::train
