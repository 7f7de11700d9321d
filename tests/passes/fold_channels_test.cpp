// What is folded, and that results stay: factors and summands of channels behind convolutions, and
// what small literals give.

#include <gtest/gtest.h>

#include "backend/reference/interpreter.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "support/tensors.h"

namespace brrr {
namespace {

const Windows kWindows{{1, 1}, {1, 1}, {1, 1, 1, 1}};

/// Nodes on the way from the convolution to the output that still read data.
size_t left_of(const Graph& g) {
  const reference::Tensors in = test::random_inputs(g, 3, 0.5, 1.5, 3);
  Notes notes;
  const Graph out = fold_channels(g, &notes);
  EXPECT_LT(test::difference(reference::evaluate(g, in), reference::evaluate(out, in)), 1e-12);
  EXPECT_EQ(notes.empty(), out == g);
  size_t rest = 0;
  std::vector<bool> reads(out.size(), false);
  for (NodeId id = 0; id < out.size(); ++id) {
    if (out.is_input(id)) {
      reads[id] = out.role(id) == Role::data;
      continue;
    }
    for (const ValueId& v : out.node(id).operands) reads[id] = reads[id] || reads[v.node];
    rest += reads[id] && !is(out.node(id), Op::conv);
  }
  return rest;
}

struct Net {
  Graph g;
  Value x = g.input("x", {2, 4, 5, 3}, DType::f32);
  Value w = g.parameter("w", {6, 2, 3, 3});
  Value s = g.parameter("s", {6, 1, 1}), t = g.parameter("t", {1, 6, 1, 1});
};

TEST(FoldChannels, WhatABatchNormalisationIs) {
  for (const bool has_bias : {false, true}) {
    Net n;
    const auto bias = has_bias ? std::optional(n.g.parameter("b", {6})) : std::nullopt;
    const Value y = conv(n.x, n.w, bias, kWindows, 2);
    n.g.output("y", y * (n.s * rsqrt(n.t + 1.0)) + (n.t - n.s) * 2.0);
    EXPECT_EQ(left_of(n.g), 0u);
  }
}

TEST(FoldChannels, ANumberForAllChannels) {
  Net n;
  n.g.output("y", conv(n.x, n.w, std::nullopt, kWindows, 2) * 0.5 + 3.0);
  EXPECT_EQ(left_of(n.g), 0u);
}

TEST(FoldChannels, WhatStaysBehind) {
  Net n;
  const Value y = conv(n.x, n.w, std::nullopt, kWindows, 2);
  n.g.output("read twice", y * n.s + tanh(y));
  n.g.output("of data",
             conv(n.x, n.w, std::nullopt, kWindows, 2) * n.g.input("z", {6, 1, 1}, DType::f32));
  n.g.output("of columns",
             conv(n.x, n.w, std::nullopt, kWindows, 2) + n.g.parameter("column", {3}));
  const Value given = conv(n.x, n.w, std::nullopt, kWindows, 2);
  n.g.output("given", given);
  n.g.output("given out", given * n.s);
  EXPECT_EQ(left_of(n.g), 6u);
}

// -- constants
// ------------------------------------------------------------------------------------

std::multiset<std::string> ops_after_folding(const Graph& g) {
  std::multiset<std::string> ops;
  for (NodeId id = 0; id < g.size(); ++id)
    if (!g.is_input(id)) ops.insert(g.node(id).op->name);
  return ops;
}

TEST(FoldConstants, WhatLiteralsGiveIsALiteral) {
  Graph g;
  const Value x = g.input("x", {2, 3}, DType::f32);
  const Value a = literal(g, {3}, {1.0, 2.5, -3.0}), b = literal(g, {3}, {4.0, 0.5, 9.0});
  g.output("y", x * reshape(a * rsqrt(b + 1e-5), {1, 3}));
  g.output("alike", x + sum(a, {0}, true));
  g.output("ids", gather(x, cast(literal(g, {2}, {1.0, 0.0}), DType::i64), 0));
  Notes notes;
  const Graph out = fold_constants(g, &notes);
  EXPECT_EQ(ops_after_folding(out),
            (std::multiset<std::string>{"add", "full", "gather", "literal", "literal", "mul"}));
  EXPECT_EQ(notes.size(), 1u);
  const reference::Tensors in = test::random_inputs(g, 3, -1, 1, 3);
  EXPECT_LT(test::difference(reference::evaluate(g, in), reference::evaluate(out, in)), 1e-6);
  EXPECT_EQ(fold_constants(out), out);
}

TEST(FoldConstants, WhatIsLargeOrMadeOfOtherThingsStays) {
  Graph g;
  const Value a = literal(g, {1, 2}, {1.0, 2.0});
  const Value key = g.input("key", {2}, DType::i32);
  g.output("large", neg(broadcast_to(a, {200, 2})));
  g.output("parameter", a * g.parameter("w", {1, 2}));
  g.output("numbers", scalar(g, 1) + scalar(g, 2));
  g.output("bits", random_bits(key, {4}, 1));
  Notes notes;
  EXPECT_EQ(fold_constants(g, &notes), g);
  EXPECT_TRUE(notes.empty());
}

}  // namespace
}  // namespace brrr
