#pragma once
// How many products a node that is linear in its first two operands adds up: the sum of its results
// where both are ones, by the loops of the reference.

#include <cmath>
#include <vector>

#include "backend/reference/interpreter.h"
#include "ir/graph.h"

namespace brrr::test {

inline int64_t products_of_ones(const Graph& g, NodeId id) {
  std::vector<RefTensor> in;
  for (const ValueId& v : g.node(id).operands) {
    in.emplace_back(g.type(v));
    for (size_t i = 0; i < in.back().size() && in.size() <= 2; ++i) in.back().set_number(i, 1);
  }
  std::vector<const RefTensor*> pointers;
  for (const RefTensor& t : in) pointers.push_back(&t);
  double total = 0;
  const RefTensor y = reference::evaluate_node(g, id, pointers)[0];
  for (size_t i = 0; i < y.size(); ++i) total += y.number(i);
  return std::llround(total);  // quantised ones are not exact
}

}  // namespace brrr::test
