#pragma once
// Which values a loader can compute once, because parameters and constants alone determine them.

#include <vector>

#include "ir/graph.h"

namespace brrr {

/// Marks the nodes that are computed from parameters, and from nothing besides but constants;
/// constants themselves are not marked.
std::vector<bool> made_of_parameters(const Graph& graph);

}  // namespace brrr
