#pragma once
// The graph as text, exactly both ways, and as a Graphviz picture.
//
//   %p1 : f32[65,128] = input() {dtype=f32, kind="parameter", name="wte", shape=[65,128]}
//   %7 : f32[8,64,128] = layer_norm(%4, %p3, %p5) {eps=1e-05} @h.0.ln_1
//   %9 : (f32[8,64], f32[8,64]) = cross_entropy(%7, %2.1) {ignore_index=-1}
//   output "loss" %12
//   update %p1 <- %30
//   gradient %p1 <- %29
//
// A parameter's id carries a p. Result `port` > 0 of a node is written %id.port. A region stands
// between braces, and what follows it, behind the closing one:
//
//   %4 : f32[8] = fused(%2, %3) {body={
//     %0 : f32[8] = input() {dtype=f32, kind="data", name="a0", shape=[8]}
//     ...
//   }} @h.0

#include <string>
#include <string_view>

#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr {

std::string print(const Graph& graph);
std::string print_node(const Graph& graph, NodeId id);

/// The inverse of print. Throws UserError "graph text, line N, column M: ..." for anything else,
/// types that infer does not confirm included. Empty lines and lines that begin with # are skipped.
Graph parse(std::string_view text, const OpLookup& lookup);
/// The inverse of Attrs::str(): "{axis=1, eps=1e-05}"; the braces may be left out. Throws
/// UserError.
Attrs parse_attrs(std::string_view text);

std::string to_dot(const Graph& graph);

/// Every promise of the graph: operands earlier than users, ports in range, types as infer says,
/// unique input names, updates of matching type, one update per state; and of each region, that it
/// is closed. Throws InternalError naming the node.
void verify(const Graph& graph);

}  // namespace brrr
