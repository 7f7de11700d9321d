#pragma once
// The pass quantize_cache: KV caches in 8 bits.

#include "passes/passes.h"

namespace brrr {

/// Lets the caches of keys and values lie in int8 rows, with a scale for each head and token: new
/// rows are quantised as they are appended, and attention reads the integers. Throws UserError if
/// a cache is read by something else, or if the target has no kernel for it.
Graph quantize_cache(const Graph& graph, const Target& target, Notes* notes = nullptr);

}  // namespace brrr
