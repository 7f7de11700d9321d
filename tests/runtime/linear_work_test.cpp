// What compiling costs grows with the nodes of a graph, and not with their square: visits are
// counted, and what could grow without end is bounded.

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "ops/control.h"
#include "ops/ops.h"
#include "passes/match/index_mask.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "runtime/unaligned_readers.h"

namespace brrr::test {
namespace {

/// x[64] through so many element-wise nodes.
Graph element_wise_chain(int nodes) {
  Graph g;
  Value x = g.input("x", {64}, DType::f32);
  Value y = x;
  for (int i = 0; i < nodes; i += 2) y = tanh(y + x);
  g.output("y", y);
  return g;
}

TEST(LinearWork, AConstantIsSoughtAmongFewNodes) {
  Graph g;
  Value short_chain = full(g, {}, 2.0, DType::f32), x = g.input("x", {}, DType::f32);
  for (int i = 0; i < 5; ++i) short_chain = short_chain * full(g, {}, 2.0, DType::f32);
  EXPECT_EQ(constant_of(g, short_chain.id), 64.0);
  // Longer than what is looked at: nothing is said of it.
  Value long_chain = short_chain;
  for (int i = 0; i < kMostConstantNodes; ++i) long_chain = long_chain * short_chain;
  EXPECT_EQ(constant_of(g, long_chain.id), std::nullopt);
  EXPECT_EQ(constant_of(g, (x * short_chain).id), std::nullopt);
}

TEST(LinearWork, FusedGroupsHaveABound) {
  const Backend backend = cpu::cpu_backend();
  constexpr int kNodes = 3000;
  const Graph g = run_pipeline(element_wise_chain(kNodes), backend.target(), {});
  size_t inside = 0, fused = 0;
  for (const Node& node : g.nodes())
    for (const Graph* body : regions_of(node)) {
      ++fused;
      inside += body->size();
      EXPECT_LE(body->size(), 256u + 32u);  // and its inputs
    }
  EXPECT_GT(inside, size_t{kNodes} / 2);
  EXPECT_GE(fused, size_t{kNodes} / 256);
}

TEST(LinearWork, PassesAskOfEveryNodeAFewTimes) {
  const Backend backend = cpu::cpu_backend();
  const auto asked = [&](int nodes) {
    int64_t count = 0;
    Target target = backend.target();
    target.runs = [&, runs = target.runs](const Graph& graph, NodeId id) {
      ++count;
      return runs(graph, id);
    };
    run_pipeline(element_wise_chain(nodes), target, {});
    return static_cast<double>(count);
  };
  EXPECT_LE(asked(4000), 2.2 * asked(2000));
}

TEST(LinearWork, ReadersOfWeightsAreFoundOnce) {
  Backend backend;
  int64_t asked = 0;
  const auto accepts = [&](const NodeView&) {
    ++asked;
    return std::string();
  };
  backend.kernels.push_back({.op = Op::add,
                             .name = "counting",
                             .accepts = accepts,
                             .prepare = nullptr,
                             .unaligned_operands = kAllOperands});
  Graph g;
  constexpr int kWeights = 200;
  Value y = g.input("x", {8}, DType::f32);
  for (int i = 0; i < kWeights; ++i) y = y + g.parameter("w" + std::to_string(i), {8});
  g.output("y", y);
  UnalignedReaders readers(backend, g);
  for (const NodeId id : g.inputs()) EXPECT_TRUE(readers.take(id));
  EXPECT_EQ(asked, kWeights + 1);  // each input has one reader
}

/// Both branches of an `if` inside an `if` and so on: as a region of the operands (c, x).
Graph nested_branches(int depth) {
  Graph g;
  const Value c = g.input("a0", {}, DType::boolean), x = g.input("a1", {4}, DType::f32);
  Value y = neg(x);
  if (depth > 0) {
    Graph other;
    other.input("a0", {}, DType::boolean);
    const Value in = other.input("a1", {4}, DType::f32);
    other.output("0", in + in);
    const std::vector<Value> captured{c, x};
    y = branch(c, Region(nested_branches(depth - 1)), Region(std::move(other)), captured)[0];
  }
  g.output("0", y);
  return g;
}

// Twice the work for each level would be a million times as much here.
TEST(LinearWork, NestedRegionsAreEnteredOnce) {
  const Backend backend = cpu::cpu_backend();
  int64_t asked = 0;
  Target target = backend.target();
  target.runs = [&, runs = target.runs](const Graph& graph, NodeId id) {
    ++asked;
    return runs(graph, id);
  };
  constexpr int kDepth = 20;
  run_pipeline(nested_branches(kDepth), target, {});
  EXPECT_LE(asked, 100 * kDepth);
}

}  // namespace
}  // namespace brrr::test
