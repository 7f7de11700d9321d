#pragma once
// Quantization-aware training: products of linear layers with operands rounded as they will be in
// the quantised model.

#include "passes/passes.h"
#include "passes/weights/weight_choice.h"

namespace brrr {

/// Products with the chosen weights read them through fake_quantize, in the bits and groups that
/// quantising gives them, and with `quantization.of_rows` their rows in 8 bits, too. Weights too
/// small to be quantised stay as they are. Throws UserError where groups do not divide
/// the terms of one. Before autocast and differentiate.
Graph fake_quantize_products(const Graph& graph, const WeightQuantization& quantization,
                             Notes* notes = nullptr);

}  // namespace brrr
