#pragma once
// Decides which weights are quantised: by size, and by name for folders that keep some layers in
// floats.

#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "passes/passes.h"

namespace brrr {

/// The smallest weights that are quantised: number of elements, and of rows and columns. Smaller
/// ones, such as heads of a few classes, save neither memory nor time.
inline constexpr int64_t kLeastQuantizedElements = 1 << 14, kLeastQuantizedSize = 32;
/// Whether a static shape is a matrix of at least these sizes.
inline bool is_worth_quantizing(const Shape& shape) {
  return shape.rank() == 2 && shape.elements() >= kLeastQuantizedElements &&
         std::min(shape.size(0), shape.size(1)) >= kLeastQuantizedSize;
}

/// Names of parameters.
using ParameterSet = std::set<std::string, std::less<>>;

struct WeightQuantization : Quantization {
  /// The parameters to quantise; null: all. Small ones stay floats.
  std::shared_ptr<const ParameterSet> only;

  WeightQuantization() = default;
  // Implicit: a Quantization without names applies to all weights.
  WeightQuantization(const Quantization& q,  // NOLINT(google-explicit-constructor)
                     std::shared_ptr<const ParameterSet> chosen = nullptr)
      : Quantization(q), only(std::move(chosen)) {}
};

/// quantize_weights() for chosen parameters. A weight that joins several parameters (join_products)
/// is quantised only if all of them are chosen.
Graph quantize_chosen_weights(const Graph& graph, const Target& target,
                              const WeightQuantization& quantization, Notes* notes = nullptr);

}  // namespace brrr
