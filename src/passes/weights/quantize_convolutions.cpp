#include "passes/weights/quantize_convolutions.h"

#include <algorithm>

#include "ops/quantized/quantized_rows.h"

namespace brrr {
namespace {

/// Whether a parameter has one number for each channel, as factors of batch normalisation do.
bool is_of_channels(const Shape& shape) {
  if (!shape.is_static()) return false;
  int64_t largest = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) largest = std::max(largest, shape.size(axis));
  return shape.elements() == largest;
}

/// Marks what is made of parameters that are not to be quantised.
std::vector<bool> made_of_others(const Graph& g, const ParameterSet* chosen) {
  std::vector<bool> result(g.size());
  for (NodeId id = 0; id < g.size(); ++id) {
    if (g.is_input(id))
      result[id] = chosen != nullptr && g.role(id) == Role::parameter &&
                   !is_of_channels(g.type({id, 0}).shape) && !chosen->contains(g.input_name(id));
    for (const ValueId& v : g.node(id).operands) result[id] = result[id] || result[v.node];
  }
  return result;
}

}  // namespace

WindowWeights quantize_convolutions(const Graph& graph, const Target& target,
                                    const WeightQuantization& quantization) {
  if (quantization.bits != 8 || !quantization.of_rows) return {graph};
  const std::vector<bool> is_other = made_of_others(graph, quantization.only.get());
  return store_window_weights(graph, target, [&](NodeId conv) -> std::optional<WindowForm> {
    const ValueId weight = graph.node(conv).operands[1];
    const Shape& w = graph.type(weight).shape;
    if (!w.is_static() || w.elements() == 0 || is_other[weight.node]) return std::nullopt;
    const Shape matrix{w.size(0), w.elements() / w.size(0)};
    if (std::min(matrix.size(0), matrix.size(1)) < kLeastQuantizedSize ||
        matrix.size(1) > ops::kMostQuantizedTerms)
      return std::nullopt;
    return WindowForm{{Layout::transposed_panels, {8, 1, 0}}};
  });
}

}  // namespace brrr
