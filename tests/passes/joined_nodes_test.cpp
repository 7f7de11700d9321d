// Joining nodes into groups: no cycle is made, and none is seen where there is none.
#include "passes/fusion/joined_nodes.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "ops/ops.h"
#include "support/tensors.h"

namespace brrr {
namespace {

// Whether, with every group one node, a third group stands on a way between the two.
bool cycle_by_search(const Graph& g, const JoinedNodes& joined, NodeId a, NodeId b) {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    std::vector<bool> seen(g.size());
    std::vector<NodeId> open;
    const auto visit_operands = [&](NodeId group) {
      for (const NodeId id : joined.members(group))
        for (const ValueId& v : g.node(id).operands) {
          const NodeId next = joined.group_of(behind_reshapes(g, v).node);
          if (next == a || next == b || seen[next]) continue;
          seen[next] = true;
          open.push_back(next);
        }
    };
    visit_operands(to);
    while (!open.empty()) {
      const NodeId group = open.back();
      open.pop_back();
      for (const NodeId id : joined.members(group))
        for (const ValueId& v : g.node(id).operands)
          if (joined.group_of(behind_reshapes(g, v).node) == from) return true;
      visit_operands(group);
    }
  }
  return false;
}

// Mostly chains with branches that come back, as in networks; some values are read far away.
Graph network(uint32_t seed) {
  RngStream rng({seed, 0}, 0);
  const auto below = [&](size_t n) { return rng.next_u32() % static_cast<uint32_t>(n); };
  Graph g;
  std::vector<Value> values{g.input("x", {4}, DType::f32), g.input("y", {4}, DType::f32)};
  for (int i = 0; i < 60; ++i) {
    const auto near = [&] {
      const size_t window = below(5) == 0 ? values.size() : std::min<size_t>(values.size(), 4);
      return values[values.size() - 1 - below(window)];
    };
    switch (below(4)) {
      case 0:
        values.push_back(tanh(near()));
        break;
      case 1:
        values.push_back(reshape(reshape(near(), {2, 2}), {4}));
        break;
      default:
        values.push_back(near() + near());
    }
  }
  g.output("out", values.back());
  return g;
}

TEST(JoinedNodes, SeesEveryCycleAndNoOther) {
  int cycles = 0, joins = 0;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = network(seed);
    JoinedNodes joined(g);
    RngStream rng({seed, 1}, 0);
    for (NodeId id = 0; id < g.size(); ++id) {
      if (g.is_input(id) || is(g.node(id), Op::reshape)) continue;
      for (const ValueId& v : g.node(id).operands) {
        const NodeId a = joined.group_of(behind_reshapes(g, v).node), b = joined.group_of(id);
        if (a == b || g.is_input(a)) continue;
        const bool cycle = joined.makes_cycle(a, b);
        ASSERT_EQ(cycle, cycle_by_search(g, joined, a, b)) << "%" << a << " and %" << b;
        cycles += cycle;
        if (cycle || rng.next_u32() % 3 == 0) continue;
        joined.join(a, b);
        ++joins;
        EXPECT_EQ(joined.group_of(id), std::min(a, b));
      }
    }
  }
  EXPECT_GT(cycles, 100);
  EXPECT_GT(joins, 500);
}

}  // namespace
}  // namespace brrr
