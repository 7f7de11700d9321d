// Which products cuBLASLt gets, with which epilogue: decided from shapes and types alone.

#include "backend/cuda/products/matmul_call.h"

#include <gtest/gtest.h>

#include "backend/cuda/kernel_list.h"
#include "ir/text.h"
#include "ops/ops.h"

namespace brrr::cuda {
namespace {

constexpr DType bf16 = DType::bf16, f32 = DType::f32;

std::vector<LaunchArg> operands(size_t n) {
  std::vector<LaunchArg> args;
  for (size_t i = 0; i < n; ++i) args.push_back(LaunchArg::in(i));
  return args;
}

std::string product_text(Graph& g, Value y) {
  MatmulCall call;
  const NodeView view(g, y.id.node);
  const std::string refusal =
      as_product(view, operands(view.in.size()), LaunchArg::out(0), call.product);
  return refusal.empty() ? describe(call) : "refused: " + refusal;
}

TEST(Products, OfEveryShape) {
  Graph g;
  int inputs = 0;
  const auto in = [&](Shape s, DType t = bf16) {
    return g.input(fmt::format("x{}", inputs++), std::move(s), t);
  };
  EXPECT_EQ(product_text(g, matmul(in({5, 7}), in({7, 3}))), "bf16 5x3x7 nn");
  EXPECT_EQ(product_text(g, matmul(in({7, 5}), in({3, 7}), true, true)), "bf16 5x3x7 tt");
  EXPECT_EQ(product_text(g, matmul(in({2, 6, 8}), in({5, 8}), false, true)), "bf16 12x5x8 nt");
  EXPECT_EQ(product_text(g, matmul(in({2, 3, 4, 8}), in({2, 3, 8, 5}))), "bf16 6 x 4x5x8 nn");
  EXPECT_EQ(product_text(g, matmul(in({4, 8}), in({6, 8, 5}))), "bf16 6 x 4x5x8 nn");
  EXPECT_EQ(product_text(g, matmul(in({3, 1, 4, 8}), in({2, 8, 5}))),
            "refused: a batch is broadcast in part");
  EXPECT_EQ(product_text(g, matmul(in({0, 7}), in({7, 3}))), "refused: a size of zero");
  EXPECT_EQ(product_text(g, matmul(in({5, 0}), in({0, 3}))), "refused: a size of zero");
  EXPECT_EQ(product_text(g, matmul(in({5, 7}, DType::f64), in({7, 3}, DType::f64))),
            "refused: f64 products with f64 results");
  EXPECT_EQ(product_text(g, matmul(in({5, 7}), in({7, 3}), false, false, f32)),
            "bf16->f32 5x3x7 nn");
  EXPECT_EQ(product_text(g, linear(in({2, 5, 7}), in({7, 3}), in({3}, f32))),
            "bf16 10x3x7 nn +bias");
}

TEST(Products, StridesAreThoseOfRows) {
  Graph g;
  const Value y = matmul(g.input("a", {6, 7, 5}, bf16), g.input("b", {6, 3, 7}, bf16), true, true);
  Product p;
  ASSERT_EQ(as_product(NodeView(g, y.id.node), operands(2), LaunchArg::out(0), p), "");
  EXPECT_EQ(std::vector({p.m, p.n, p.k}), (std::vector<int64_t>{5, 3, 7}));
  EXPECT_EQ(std::vector({p.row_a, p.row_b, p.row_y}), (std::vector<int64_t>{5, 7, 3}));
  EXPECT_EQ(std::vector({p.batch_a, p.batch_b, p.batch_y}), (std::vector<int64_t>{35, 21, 15}));
}

/// The call of a fused node with that body, or why there is none.
std::string described(const Graph& body) {
  Graph g;
  std::vector<ValueId> in;
  for (NodeId id : body.inputs()) in.push_back(g.input(body.input_name(id), body.type({id, 0})).id);
  const NodeId fused = g.add(op("fused"), in, {{"body", Region(body)}});
  MatmulCall call;
  const std::string refusal = as_matmul_call(NodeView(g, fused), call);
  return refusal.empty() ? describe(call) : "refused: " + refusal;
}

/// A fused node of x [M, K], w [K, N] and a third operand, whatever `build` makes of them.
std::string epilogue_text(const std::function<void(Graph&, Value x, Value w, Value z)>& build,
                          int64_t n = 16, DType dtype = bf16, Shape third = {}) {
  Graph body;
  if (third.rank() == 0) third = {6, n};
  const Value x = body.input("a0", {6, 8}, dtype), w = body.input("a1", {8, n}, dtype);
  const Value z = body.input("a2", third, dtype);
  build(body, x, w, z);
  return described(body);
}

TEST(Epilogues, WhatTheLibraryDoes) {
  using V = Value;
  EXPECT_EQ(epilogue_text([](Graph& g, V x, V w, V z) { g.output("0", matmul(x, w) + z); }),
            "bf16 6x16x8 nn +addend");
  EXPECT_EQ(epilogue_text([](Graph& g, V x, V w, V z) { g.output("0", z + matmul(x, w)); }),
            "bf16 6x16x8 nn +addend");
  EXPECT_EQ(
      epilogue_text([](Graph& g, V x, V w, V) { g.output("0", gelu(matmul(x, w), Gelu::tanh)); }),
      "bf16 6x16x8 nn +gelu");
  EXPECT_EQ(epilogue_text(
                [](Graph& g, V x, V w, V z) {
                  const V y = linear(x, w, z);
                  g.output("0", gelu(y, Gelu::tanh));
                  g.output("1", y);
                },
                16, bf16, {16}),
            "bf16 6x16x8 nn +bias +gelu(aux)");
  EXPECT_EQ(epilogue_text([](Graph& g, V x, V w, V z) {
              g.output("0", call1(Op::gelu_grad, {matmul(x, w), z},
                                  {{"approximate", std::string("tanh")}}));
            }),
            "bf16 6x16x8 nn *gelu_grad");
  EXPECT_EQ(epilogue_text(
                [](Graph& g, V x, V w, V z) {
                  g.output("0", reshape(matmul(x, w), {2, 3, 16}) + z);
                },
                16, bf16, {2, 3, 16}),
            "bf16 6x16x8 nn +addend");
  EXPECT_EQ(
      epilogue_text([](Graph& g, V x, V w, V z) { g.output("0", matmul(x, w) + z); }, 16, f32),
      "f32 6x16x8 nn +addend");
}

TEST(Epilogues, WhatItDoesNot) {
  using V = Value;
  const auto expect = [](const std::string& part, const std::function<void(Graph&, V, V, V)>& build,
                         int64_t n = 16, DType dtype = bf16, Shape third = {}) {
    const std::string text = epilogue_text(build, n, dtype, std::move(third));
    EXPECT_EQ(text, "refused: " + part);
  };
  const auto gelu_of = [](Graph& g, V x, V w, V) { g.output("0", gelu(matmul(x, w), Gelu::tanh)); };
  expect("columns must be a multiple of 8", gelu_of, 13);
  expect("gelu of f32 is more exact in a kernel of its own", gelu_of, 16, f32);
  expect("gelu without tanh",
         [](Graph& g, V x, V w, V) { g.output("0", gelu(matmul(x, w), Gelu::erf)); });
  expect("no epilogue does tanh", [](Graph& g, V x, V w, V) { g.output("0", tanh(matmul(x, w))); });
  expect("the product twice", [](Graph& g, V x, V w, V) {
    const V y = matmul(x, w);
    g.output("0", y + y);
  });
  expect("the product is kept beside its sum", [](Graph& g, V x, V w, V z) {
    const V y = matmul(x, w);
    g.output("0", y + z);
    g.output("1", y);
  });
  expect("add besides tanh",
         [](Graph& g, V x, V w, V z) { g.output("0", tanh(matmul(x, w) + z)); });
  expect("an operand bf16[1,16] beside a product bf16[6,16]",
         [](Graph& g, V x, V w, V z) { g.output("0", matmul(x, w) + z); }, 16, bf16, {1, 16});
  expect("a result of another dtype than the product",
         [](Graph& g, V x, V w, V) { g.output("0", cast(matmul(x, w), f32)); });
  expect("the product is what was squashed", [](Graph& g, V x, V w, V z) {
    g.output("0", call1(Op::gelu_grad, {z, matmul(x, w)}, {{"approximate", std::string("tanh")}}));
  });
}

/// A fused node of x [K, M], dy [K, N] and c [M, N] f32, whatever `build` makes of them.
std::string gradient_text(const std::function<void(Graph&, Value x, Value dy, Value c)>& build,
                          DType dtype = bf16) {
  Graph body;
  const Value x = body.input("a0", {32, 6}, dtype), dy = body.input("a1", {32, 16}, dtype);
  build(body, x, dy, body.input("a2", {6, 16}, f32));
  return described(body);
}

TEST(Epilogues, TheGradientOfABias) {
  using V = Value;
  const auto product = [](V a, V b) { return matmul(a, b, true, false, f32); };
  const auto rows = [](V dy) { return sum(cast(dy, f32), {0}); };
  for (const DType t : {bf16, DType::f16}) {
    const std::string_view name = name_of(t);
    EXPECT_EQ(gradient_text(
                  [&](Graph& g, V x, V dy, V) {
                    g.output("0", product(x, dy));
                    g.output("1", rows(dy));
                  },
                  t),
              fmt::format("{}->f32 6x16x32 tn +bgrad", name));
    EXPECT_EQ(gradient_text(
                  [&](Graph& g, V x, V dy, V) {
                    g.output("0", rows(dy));
                    g.output("1", product(dy, x));
                  },
                  t),
              fmt::format("{}->f32 16x6x32 tn +bgrad(a)", name));
  }
  EXPECT_EQ(gradient_text([&](Graph& g, V x, V dy, V c) {
              g.output("0", c + product(x, dy));
              g.output("1", rows(dy));
            }),
            "bf16->f32 6x16x32 tn +addend +bgrad");
  EXPECT_EQ(gradient_text([&](Graph& g, V x, V dy, V c) {
              g.output("0", tanh(product(x, dy)) + c);
              g.output("1", rows(dy));
            }),
            "refused: tanh besides add");
  EXPECT_EQ(gradient_text([&](Graph& g, V x, V dy, V) {
              g.output("0", tanh(product(x, dy)));
              g.output("1", rows(dy));
            }),
            "refused: tanh beside a bias gradient");
  EXPECT_EQ(gradient_text([&](Graph& g, V x, V dy, V) {
              g.output("0", matmul(x, dy, true));
              g.output("1", rows(dy));
            }),
            "refused: a bias gradient that is not summed in f32, or beside a product that is not");
  EXPECT_EQ(gradient_text(
                [&](Graph& g, V x, V dy, V) {
                  g.output("0", matmul(x, dy, true));
                  g.output("1", sum(dy, {0}));
                },
                f32),
            "refused: a bias gradient of f32");
  EXPECT_EQ(gradient_text([&](Graph& g, V x, V dy, V) {
              g.output("0", matmul(reshape(x, {6, 32}), dy, false, false, f32));
              g.output("1", rows(dy));
            }),
            "refused: a product of something that is computed");
}

}  // namespace
}  // namespace brrr::cuda
