#pragma once
// winograd: 3 x 3 convolutions by Winograd's algorithm (ops/spatial/winograd.h).

#include "ir/graph.h"
#include "passes/passes.h"

namespace brrr {

/// The faster tile for f32 pictures with channels last, 4 or 2; 0: the plain sum is faster. The
/// sizes are those of one picture's results and of its channels before and after. It does not
/// depend on the batch, so that a picture has the same bits alone and in a batch.
int64_t winograd_tile(int64_t high, int64_t wide, int64_t channels, int64_t outputs);

/// Convolutions of f32 with channels last, a 3 x 3 kernel, steps of 1 and one group, whose weights
/// are made of parameters alone, read transformed weights in panels where winograd_tile() says that
/// they are faster. For a loader, who makes the weights once: they take 1.8 or 4 times the memory.
/// Results are rounded otherwise than before.
Graph winograd(const Graph& graph, const Target& target, Notes* notes = nullptr);

}  // namespace brrr
