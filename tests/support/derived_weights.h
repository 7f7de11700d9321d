#pragma once
// The derived weights of a graph, for tests.

#include <vector>

#include "passes/weights/derived_weight.h"

namespace brrr::test {

inline std::vector<DerivedWeight> derived_weights_of(const Graph& g) {
  std::vector<DerivedWeight> list;
  for (const NodeId id : g.inputs())
    if (auto weight = derived_weight(g.node(id).attrs)) list.push_back(std::move(*weight));
  return list;
}

/// The program that makes them out of the parameters.
inline Graph refresh_of(const Graph& g) { return refresh_graph(derived_weights_of(g)); }

/// Whether a node reads or gives something in another storage than rows.
inline bool touches_storage(const Graph& g, NodeId id) {
  for (const ValueId& v : g.node(id).operands)
    if (!g.type(v).storage.is_plain()) return true;
  for (const Type& t : g.node(id).results)
    if (!t.storage.is_plain()) return true;
  return false;
}

}  // namespace brrr::test
