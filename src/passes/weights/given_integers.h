#pragma once
// Weights that a file holds as integers and dequantises in the graph.

#include "passes/passes.h"

namespace brrr {

/// Products with (integers - zeros) * scales, all of them made of parameters and constants, read
/// the integers in panels (base/integer_panels.h), with their own scales: nothing is quantised
/// again. There is a scale for the weight, for each column, or for each group of terms, which is an
/// axis of its own that a reshape joins. The target must have a kernel, and the differences must
/// fit 8 bits. A product of more than kFewRows rows in 16 bits keeps its weight in 16 bits, which
/// matrix units multiply. `of_rows`: rows of the left operand are quantised to 8 bits, too.
/// For a loader, who packs the integers once; before derive_weights.
Graph read_integers(const Graph& graph, const Target& target, const Quantization& quantization,
                    Notes* notes = nullptr);

/// Rows of a table that is computed element by element from a narrower one, such as integers times
/// scales, are gathered first and computed then. Bits stay.
Graph gather_first(const Graph& graph, Notes* notes = nullptr);

}  // namespace brrr
