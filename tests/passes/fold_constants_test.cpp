// What is known before a run, and what must stay.

#include <gtest/gtest.h>

#include "backend/reference/interpreter.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "support/tensors.h"

namespace brrr {
namespace {

size_t count_ops(const Graph& g, std::string_view name) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += node.op->name == name;
  return n;
}

TEST(FoldConstants, WhatDependsOnNothing) {
  Graph g;
  Value x = g.input("x", {4, 5}, DType::f32);
  Value places = iota(g, {4, 5}, 1, DType::i64);
  Value even = equal(fmod(places, scalar(g, 2, DType::i64)), scalar(g, 0, DType::i64));
  Value third = full(g, {5}, 1.0, DType::f32) / 3.0;
  g.output("y", where(even, x * third, x));
  Notes notes;
  const Graph out = fold_constants(g, &notes);
  verify(out);
  EXPECT_EQ(notes.size(), 1u);
  EXPECT_EQ(count_ops(out, "literal"), 1u) << print(out);
  EXPECT_EQ(count_ops(out, "full"), 1u);
  EXPECT_EQ(count_ops(out, "equal") + count_ops(out, "fmod") + count_ops(out, "div"), 0u);
  const auto in = test::random_inputs(g, 1, -1, 1, 3);
  // The quotient is rounded to f32 before the product.
  EXPECT_LE(test::difference(reference::evaluate(g, in), reference::evaluate(out, in)), 1e-7);
  EXPECT_TRUE(fold_constants(out) == out) << "a second time changes something";
}

TEST(FoldConstants, WhatIsLargeOrRandomOrOfAParameterStays) {
  Graph g;
  g.output("large", iota(g, {300}, 0, DType::i64) * scalar(g, 2, DType::i64));
  g.output("parameter", g.parameter("w", {3}) * 2.0);
  g.output("random", random_bits(full(g, {2}, 1, DType::i32), {4}, 1));
  const Graph before = simplify(g);
  Notes notes;
  EXPECT_TRUE(fold_constants(before, &notes) == before);
  EXPECT_TRUE(notes.empty());
}

}  // namespace
}  // namespace brrr
