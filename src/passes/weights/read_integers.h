#pragma once
// The pass read_integers: weights that a file holds as integers and dequantises in its graph.

#include "passes/passes.h"

namespace brrr {

/// Lets products by (integers - zeros) * scales, all of them made of parameters and constants, read
/// the integers in panels (base/integer_panels.h), with their own scales: nothing is quantised
/// again. There is a scale for the weight, for each column, or for each group of terms, which is an
/// axis of its own that a reshape joins. The target must have a kernel, and the differences must
/// fit 8 bits. A product in 16 bits that matrix units multiply keeps its weight in 16 bits.
/// Rows (integers - zero) * scale, as files with quantised activations have them, are multiplied as
/// integers, too, where the weight has no groups and no zero points: exactly, but for the rounding
/// of the result. `of_rows`: other rows of the left operand are quantised to 8 bits, too. Runs for
/// inference, whose loader packs the integers once, and before derive_weights.
Graph read_integers(const Graph& graph, const Target& target, const Quantization& quantization,
                    Notes* notes = nullptr);

}  // namespace brrr
