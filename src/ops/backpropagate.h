#pragma once
// Derivatives of parts of a graph, for ops whose vjp is the derivative of other nodes: a loop
// differentiates its body so, and a composite its decomposition.

#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr::ops {

/// A value and the gradient of the loss with respect to it.
struct Seed {
  Value value, gradient;
};

/// Appends the nodes that compute the gradients of `wanted`, floating values of `g`, given those of
/// the seeds. Only nodes from `first` on are differentiated, and not those that make wanted values.
/// Returns a Value without a graph for a value on which no seed depends. Throws UserError, which
/// names `caller`, where an op on the way has no derivative.
std::vector<Value> backpropagate(Graph& g, NodeId first, std::span<const Seed> seeds,
                                 std::span<const Value> wanted, std::string_view caller);

/// The same graph without composites that have no vjp of their own.
Graph without_opaque_composites(Graph graph);

/// Appends the nodes of `region`, whose inputs are these values. Returns its outputs.
std::vector<Value> inline_region(Graph& g, const Graph& region, std::span<const Value> inputs);

/// Sets the gradients of a composite's operands by differentiating its decomposition, which is
/// computed a second time.
void differentiate_decomposition(VjpContext& c);

}  // namespace brrr::ops
