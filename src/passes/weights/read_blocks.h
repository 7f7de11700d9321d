#pragma once
// The pass read_blocks: parameters that a file has in blocks of integers, such as Q4_K of GGUF.

#include "passes/weights/weight_choice.h"

namespace brrr {

/// Gives the parameters named in `blocks` the storage that the file has. Nodes that pack a weight
/// in panels or gather rows of a table read the blocks if the target has a kernel for it; all other
/// nodes read floats that are dequantised once. The loader then lends the mapped file instead of
/// copying it to floats. Parameters whose rows are not whole blocks stay floats. Runs before
/// derive_weights.
Graph read_blocks(const Graph& graph, const Target& target, const BlockParameters& blocks,
                  Notes* notes = nullptr);

}  // namespace brrr
