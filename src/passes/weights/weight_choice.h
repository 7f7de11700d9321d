#pragma once
// Decides which weights are quantised: by size, and by name for folders that keep some layers in
// floats.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
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

/// Parameters that a weight source has in blocks, and the storage of each.
using BlockParameters = std::map<std::string, Storage, std::less<>>;

/// The integers [outputs, inputs] that a weight source has of a parameter (integers_name(),
/// base/weight_source.h).
struct GivenIntegers {
  int bits = 8;   // 8 or 4
  int group = 0;  // inputs that share a scale; 0: all
  bool operator==(const GivenIntegers&) const = default;
};
using GivenParameters = std::map<std::string, GivenIntegers, std::less<>>;

struct WeightQuantization : Quantization {
  /// The parameters to quantise; null: all. Small ones stay floats.
  std::shared_ptr<const ParameterSet> only;
  /// Those that are read in blocks (read_blocks.h); null: none.
  std::shared_ptr<const BlockParameters> blocks;
  /// The parameters whose integers the weight source lists, each with its own bits and groups. They
  /// are packed as they are, and no floats are quantised. Null: none.
  std::shared_ptr<const GivenParameters> given;

  WeightQuantization() = default;
  // Implicit: a Quantization without names applies to all weights.
  WeightQuantization(const Quantization& q,  // NOLINT(google-explicit-constructor)
                     std::shared_ptr<const ParameterSet> chosen = nullptr)
      : Quantization(q), only(std::move(chosen)) {}
};

/// Describes how a parameter is stored for products: only parameters with equal descriptions can be
/// joined into one quantised weight.
std::string form_of_parameter(const WeightQuantization& quantization, const std::string& parameter);

/// join_products() of parameters that are quantised alike.
Graph join_quantized_products(const Graph& graph, const WeightQuantization& quantization,
                              Notes* notes = nullptr);

/// quantize_weights() for chosen parameters. A weight that joins several parameters (join_products)
/// is quantised only if all of them are chosen.
Graph quantize_chosen_weights(const Graph& graph, const Target& target,
                              const WeightQuantization& quantization, Notes* notes = nullptr);

}  // namespace brrr
