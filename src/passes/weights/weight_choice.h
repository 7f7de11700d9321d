#pragma once
// How weights are quantised, and which ones: a folder with quantised weights names those that it
// keeps as they are.

#include <memory>
#include <set>
#include <string>

#include "passes/passes.h"

namespace brrr {

/// Names of parameters.
using ParameterSet = std::set<std::string, std::less<>>;

struct WeightQuantization : Quantization {
  /// The parameters that are quantised where they are large enough; null: all.
  std::shared_ptr<const ParameterSet> only;

  WeightQuantization() = default;
  // Implicit, because a precision without such a choice is one of all weights.
  WeightQuantization(const Quantization& q,  // NOLINT(google-explicit-constructor)
                     std::shared_ptr<const ParameterSet> chosen = nullptr)
      : Quantization(q), only(std::move(chosen)) {}
};

/// quantize_weights() of the parameters that are chosen. A weight that is several parameters side
/// by side (join_products) is quantised where all of them are.
Graph quantize_chosen_weights(const Graph& graph, const Target& target,
                              const WeightQuantization& quantization, Notes* notes = nullptr);

}  // namespace brrr
