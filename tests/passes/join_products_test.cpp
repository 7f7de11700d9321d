// Products of one left operand as one: which are joined, and that results stay.

#include <gtest/gtest.h>

#include "backend/reference/interpreter.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "support/tensors.h"

namespace brrr {
namespace {

size_t products_in(const Graph& g) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += node.op->product.has_value();
  return n;
}

/// Joins, checks that the results stay, and says how many products are left.
size_t joins_of(const Graph& g) {
  Notes notes;
  const Graph out = join_products(g, &notes);
  const reference::Tensors in = test::random_inputs(g, 3, -1, 1, 3);
  EXPECT_EQ(test::difference(reference::evaluate(g, in), reference::evaluate(out, in)), 0);
  EXPECT_EQ(notes.empty(), out == g);
  return products_in(out);
}

TEST(JoinProducts, OfOneLeftOperand) {
  for (const bool transposed : {false, true})
    for (const Shape& rows : {Shape{3, 8}, Shape{2, 3, 8}, Shape{1, 1, 8}}) {
      SCOPED_TRACE(fmt::format("{} {}", rows.str(), transposed));
      Graph g;
      const Value x = g.input("x", rows, DType::f32), other = g.input("other", rows, DType::f32);
      const auto weight = [&](const char* name, int64_t n) {
        return g.parameter(name, transposed ? Shape{n, 8} : Shape{8, n});
      };
      const Value q = weight("q", 6), k = weight("k", 2), v = weight("v", 2), o = weight("o", 5);
      g.output("q", matmul(x, q, false, transposed));
      g.output("k", matmul(x, k, false, transposed));
      g.output("o", matmul(other, o, false, transposed));
      g.output("v", tanh(matmul(x, v, false, transposed)));
      EXPECT_EQ(joins_of(g), 2u);
    }
}

TEST(JoinProducts, WhatStaysApart) {
  Graph g;
  const Value x = g.input("x", {3, 8}, DType::f32);
  const auto square = [&](const char* name) { return g.parameter(name, {8, 8}); };
  const Value a = square("a"), b = square("b"), c = square("c"), d = square("d");
  const Value e = square("e"), f = square("f");
  g.output("first", matmul(x, a));
  g.output("turned", matmul(x, b, false, true));
  g.output("left turned", matmul(g.input("z", {8, 3}, DType::f32), c, true, false));
  g.output("biased", linear(x, d, g.parameter("bias", {8})));
  g.output("read twice", matmul(x, e) + matmul(x * 2.0, e));
  g.output("given out", matmul(x, f));
  g.output("f", f);
  g.output("computed", matmul(x, a * 2.0));
  g.output("no parameter", matmul(x, g.input("w", {8, 8}, DType::f32)));
  EXPECT_EQ(joins_of(g), 9u);
  // A weight that comes behind the first product goes in front of it.
  Graph late;
  const Value y = late.input("x", {3, 8}, DType::f32);
  late.output("0", matmul(y, late.parameter("p", {8, 4})));
  late.output("1", matmul(y, late.parameter("q", {8, 4})));
  EXPECT_EQ(joins_of(late), 1u);
}

size_t additions_in(const Graph& g) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += is(node, Op::add);
  return n;
}

TEST(JoinProducts, BiasesOfJoinedProductsAreJoined) {
  for (const bool transposed : {false, true}) {
    Graph g;
    const Value x = g.input("x", {2, 3, 8}, DType::f32);
    const auto project = [&](const std::string& name, int64_t n, bool bias_first) {
      const Value y =
          matmul(x, g.parameter(name, transposed ? Shape{n, 8} : Shape{8, n}), false, transposed);
      const Value bias = g.parameter(name + ".bias", {n});
      return bias_first ? bias + y : y + bias;
    };
    g.output("q", project("q", 6, false));
    g.output("k", project("k", 2, true));
    g.output("v", tanh(project("v", 3, false)));
    EXPECT_EQ(joins_of(g), 1u);
    EXPECT_EQ(additions_in(join_products(g)), 1u);
  }
}

TEST(JoinProducts, BiasesStayWhereOneProductHasNone) {
  Graph g;
  const Value x = g.input("x", {3, 8}, DType::f32);
  const auto product = [&](const char* name) { return matmul(x, g.parameter(name, {8, 4})); };
  g.output("with", product("p") + g.parameter("bias", {4}));
  const Value shared = product("q");
  g.output("also without", shared + g.parameter("other", {4}));
  g.output("without", shared * 2.0);
  EXPECT_EQ(joins_of(g), 1u);
  EXPECT_EQ(additions_in(join_products(g)), 2u);
  // A sum with a value that is not a vector of the columns is no bias.
  Graph wide;
  const Value y = wide.input("x", {3, 8}, DType::f32);
  for (const char* name : {"p", "q"})
    wide.output(name, matmul(y, wide.parameter(name, {8, 4})) +
                          wide.parameter(std::string(name) + ".matrix", {3, 4}));
  EXPECT_EQ(joins_of(wide), 1u);
  EXPECT_EQ(additions_in(join_products(wide)), 2u);
}

}  // namespace
}  // namespace brrr
