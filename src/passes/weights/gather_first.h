#pragma once
// The pass gather_first: tables that a graph computes before it gathers their rows.

#include "passes/passes.h"

namespace brrr {

/// Gathers the rows of a table before the element-wise ops that compute it from a narrower one,
/// such as integers times scales; results are bit-identical. Only tables that nothing but gathers
/// reads, and gathers of fewer rows than the table has.
Graph gather_first(const Graph& graph, Notes* notes = nullptr);

}  // namespace brrr
