#pragma once
// Evaluation of graphs in fp64 with the ops' own loops, composites through their decomposition.
// Values are not rounded between ops.

#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr {

/// One node on given operands.
std::vector<RefTensor> evaluate_node(const Graph& graph, NodeId id,
                                     std::span<const RefTensor* const> in);

/// The outputs of a graph, updates included, in their order. `inputs` in the order of inputs();
/// their types are not checked. A UserError gets the scope of the node that it comes from.
std::vector<RefTensor> evaluate_graph(const Graph& graph, std::span<const RefTensor* const> inputs);

}  // namespace brrr
