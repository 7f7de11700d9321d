// The gradient of a bias as a second result of the product that reads the same rows.

#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/fused.h"
#include "ops/op.h"
#include "passes/passes.h"
#include "support/gpt2.h"
#include "support/random_clusters.h"

namespace brrr {
namespace {

Target eager() {
  Target target;
  target.runs = [](const Graph& g, NodeId id) { return is(g.node(id), Op::fused); };
  return target;
}

size_t joined(const Graph& g) {
  size_t n = 0;
  for (const Node& node : g.nodes())
    n += is(node, Op::fused) && bias_gradient_of(fused_body(node)).has_value();
  return n;
}

/// x, dy: [12, 5] and [12, 7] in `t`; returns how many bias gradients the pass makes of it.
size_t joined_of(const std::function<void(Graph&, Value x, Value dy)>& build, DType t = bf16,
                 const Target& target = eager()) {
  Graph g;
  const Value x = g.input("x", {12, 5}, t), dy = g.input("dy", {12, 7}, t);
  build(g, x, dy);
  const Graph after = fuse_bias_gradients(g, target);
  verify(after);
  const auto in = test::random_inputs(g, 3, -1, 1, 2);
  EXPECT_LT(test::difference(reference::evaluate(g, in), reference::evaluate(after, in)), 1e-12);
  return joined(after);
}

Value rows_sum(Value dy) { return sum(cast(dy, f32), {0}); }
Value product(Value a, Value b) { return matmul(a, b, true, false, f32); }

TEST(FuseBiasGradients, JoinsTheProductThatReadsTheSameRows) {
  using V = Value;
  EXPECT_EQ(joined_of([](Graph& g, V x, V dy) {
              g.output("w", product(x, dy));
              g.output("b", rows_sum(dy));
            }),
            1u);
  EXPECT_EQ(joined_of([](Graph& g, V x, V dy) {  // a weight that lies the other way
              g.output("b", rows_sum(dy));
              g.output("w", product(dy, x));
            }),
            1u);
  EXPECT_EQ(joined_of([](Graph& g, V x, V dy) {  // of three axes, as seen by the sum
              g.output("w", product(x, dy));
              g.output("b", sum(cast(reshape(dy, {3, 4, 7}), f32), {0, 1}, true));
            }),
            1u);
  EXPECT_EQ(joined_of(
                [](Graph& g, V x, V dy) {
                  g.output("w", product(x, dy));
                  g.output("b", sum(dy, {0}));
                },
                f32),
            1u);
  EXPECT_EQ(joined_of([](Graph& g, V x, V) {  // an operand twice
              g.output("w", product(x, x));
              g.output("b", rows_sum(x));
            }),
            1u);
  EXPECT_EQ(joined_of([](Graph& g, V x, V dy) {  // one sum, two products
              g.output("w", product(x, dy));
              g.output("v", product(dy, dy));
              g.output("b", rows_sum(dy));
            }),
            1u);
}

TEST(FuseBiasGradients, LeavesOtherSumsAlone) {
  using V = Value;
  const auto none = [](const std::function<void(Graph&, V, V)>& build, DType t = bf16,
                       const Target& target = eager()) {
    EXPECT_EQ(joined_of(build, t, target), 0u);
  };
  const auto plain = [](Graph& g, V x, V dy) {
    g.output("w", product(x, dy));
    g.output("b", rows_sum(dy));
  };
  Target unwilling = eager(), unable = eager();
  unwilling.gains_by_bias_gradient = [](const Graph&, NodeId, NodeId) { return false; };
  unable.runs = [](const Graph&, NodeId) { return false; };
  none(plain, bf16, unwilling);
  none(plain, bf16, unable);
  none([](Graph& g, V x, V dy) {  // over columns; over some of the rows
    g.output("w", product(x, dy));
    g.output("b", sum(cast(dy, f32), {1}));
    g.output("part", sum(cast(reshape(dy, {3, 4, 7}), f32), {1}));
    g.output("all", sum(cast(dy, f32), {0, 1}));
  });
  none([](Graph& g, V x, V dy) {  // products that contract something else
    g.output("w", matmul(transpose(x, {1, 0}), dy, false, false, f32));
    g.output("v", matmul(dy, transpose(x, {1, 0}), true, true, f32));
    g.output("b", rows_sum(dy));
  });
  none([](Graph& g, V x, V) {  // rows of another view
    g.output("w", product(reshape(x, {10, 6}), reshape(x, {10, 6})));
    g.output("b", rows_sum(x));
  });
  none(
      [](Graph& g, V x, V dy) {  // what is summed was rounded, the product reads it as it was
        g.output("w", matmul(x, dy, true));
        g.output("b", rows_sum(cast(dy, bf16)));
      },
      f32);
  none([](Graph& g, V x, V dy) {  // the product waits for the sum
    const V total = rows_sum(dy);
    g.output("w", product(cast(cast(x, f32) + reshape(slice(total, 0, 0, 5), {1, 5}), bf16), dy));
  });
}

TEST(FuseBiasGradients, LeavesWhatAClusterSumsOnTheWay) {
  const auto count = [](const std::function<Value(Graph&, Value dy)>& made) {
    return joined_of([&](Graph& g, Value x, Value dy) {
      const Value d = made(g, dy);
      g.output("d", d);
      g.output("w", product(x, d));
      g.output("b", rows_sum(d));
    });
  };
  EXPECT_EQ(count([](Graph&, Value dy) { return tanh(dy); }), 0u);
  EXPECT_EQ(count([](Graph&, Value dy) { return cast(softmax(cast(dy, f32)), bf16); }), 0u);
  const auto squashed = [](Graph& g, Value dy) {
    const Value w = g.input("w", {7, 7}, bf16), z = g.input("z", {12, 7}, bf16);
    return call1(Op::gelu_grad, {matmul(dy, w), z}, {{"approximate", std::string("tanh")}});
  };
  // Where a product takes GELU's derivative as its epilogue, the sum would be in the way.
  EXPECT_EQ(count(squashed), 1u);
  EXPECT_EQ(count([](Graph&, Value dy) {
              return reshape(transpose(reshape(dy, {3, 4, 7}), {1, 0, 2}), {12, 7});
            }),
            1u);
}

TEST(FuseBiasGradients, WhatIsAddedToTheProductJoinsItStill) {
  Graph g;
  const Value x = g.input("x", {12, 5}, bf16), dy = g.input("dy", {12, 7}, bf16);
  const Value w = g.input("dw", {5, 7}, f32, InputKind::state),
              b = g.input("db", {7}, f32, InputKind::state);
  g.update(w, w + product(x, dy));
  g.update(b, b + rows_sum(dy));
  const Graph after = fuse_epilogues(fuse_bias_gradients(g, eager()), eager());
  verify(after);
  ASSERT_EQ(joined(after), 1u) << print(after);
  for (const Node& node : after.nodes())
    if (is(node, Op::fused)) {
      EXPECT_EQ(node.results.size(), 2u);
      EXPECT_EQ(node.operands.size(), 3u) << print(after);
      EXPECT_FALSE(node.op->in_place_pairs(node).empty());
    }
  const auto in = test::random_inputs(g, 3, -1, 1, 2);
  EXPECT_LT(test::difference(reference::evaluate(g, in), reference::evaluate(after, in)), 1e-12);
}

TEST(FuseBiasGradients, KeepsTheMeaningOfRandomGraphs) {
  size_t found = 0;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = test::RandomBiasGradients(seed, 40).graph();
    const Graph after = fuse_epilogues(fuse(fuse_bias_gradients(g, eager()), eager()), eager());
    verify(after);
    found += joined(after);
    const auto in = test::random_inputs(g, seed, -1, 1, 2);
    EXPECT_LT(test::difference(reference::evaluate(g, in), reference::evaluate(after, in)), 1e-12)
        << print(after);
    if (HasFailure()) return;
  }
  EXPECT_GT(found, 50u);
}

}  // namespace
}  // namespace brrr
