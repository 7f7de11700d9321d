// Adapters that rows choose: each row has the sum of the base and its own adapter.

#include "passes/adapters/choose_adapters.h"

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "support/tensors.h"

namespace brrr {
namespace {

constexpr int64_t kChoosingRows = 7, kWantedRows = 5;

/// Rows of width 4: q and k of the same rows, their product by a head where logits are wanted.
Graph rows_that_choose() {
  Graph g;
  const Value tokens = g.input("tokens", {kChoosingRows}, DType::i32);
  const Value wanted = g.input("wanted", {kWantedRows}, DType::i32);
  const Value x = embedding(g.parameter("table", {5, 4}), tokens);
  const Value q = linear(x, g.parameter("q", {4, 6}), g.parameter("bias", {6}));
  const Value k = matmul(x, g.parameter("k", {6, 4}), false, true);
  const Value rows = gather(tanh(q) + k, wanted, 0);
  g.output("logits", matmul(rows, g.parameter("head", {8, 6}), false, true));
  return g;
}

ProductAdapter adapter_by(int64_t number, const std::string& weight, int64_t rank, double scale) {
  const std::string name = weight + std::to_string(number);
  return {.weight = weight,
          .a = name + ".a",
          .b = name + ".b",
          .rank = rank,
          .scale = scale,
          .number = number};
}

/// Three adapters of different layers: the second has no part for k, the third none for q.
std::vector<ProductAdapter> three_adapters() {
  return {adapter_by(1, "q", 2, 0.5), adapter_by(1, "k", 3, 0.25), adapter_by(1, "head", 1, 2),
          adapter_by(2, "q", 1, 3),   adapter_by(2, "head", 2, 1), adapter_by(3, "k", 2, 1)};
}

TEST(ChooseAdapters, GiveEachRowItsOwn) {
  const Graph base = rows_that_choose();
  const std::vector<ProductAdapter> adapters = three_adapters();
  const Graph chosen = add_chosen_adapters(base, adapters);
  verify(chosen);
  reference::Tensors in = test::random_inputs(chosen, 3, -1, 1, 4);
  in.at("wanted").data = {5, 0, 2, 1, 3};
  in.at("adapters").data = {1, 0, 2, kAllAdapters, 1, 3, 2};
  const RefTensor got = reference::evaluate(chosen, in).at("logits");
  for (size_t row = 0; row < kWantedRows; ++row) {
    const auto number = static_cast<int64_t>(
        in.at("adapters").data[static_cast<size_t>(in.at("wanted").data[row])]);
    std::vector<ProductAdapter> own;
    for (const ProductAdapter& adapter : adapters)
      if (adapter.number == number || number == kAllAdapters) own.push_back(adapter);
    const Graph alone = add_adapters(base, own, AdapterUse::inference);
    const RefTensor expected = reference::evaluate(alone, in).at("logits");
    for (size_t i = 8 * row; i < 8 * (row + 1); ++i)
      EXPECT_NEAR(got.data[i], expected.data[i], 1e-12) << "row " << row << ", adapter " << number;
  }
}

// Products of the same rows read one stack of A; in 16 bits stacks are derived weights.
TEST(ChooseAdapters, StacksAreMadeWhenWeightsAreLoaded) {
  const Graph chosen = add_chosen_adapters(rows_that_choose(), three_adapters());
  size_t products = 0;
  for (const Node& node : chosen.nodes()) products += node.op->product.has_value();
  EXPECT_EQ(products, 3u + 2u + 3u);  // the base's, A of q and k and of the head, B of each
  for (const DType precision : {DType::f32, DType::bf16, DType::f16}) {
    const Graph out = run_pipeline(chosen, cpu::cpu_backend().target(), for_inference(precision));
    for (const Node& node : out.nodes()) {
      EXPECT_FALSE(is(node, Op::concat)) << name_of(precision);
      EXPECT_FALSE(is(node, Op::store)) << name_of(precision);
    }
    for (const ProductAdapter& adapter : three_adapters())
      EXPECT_EQ(out.find_input(adapter.a), kNoNode) << adapter.a;
  }
}

}  // namespace
}  // namespace brrr
