// Products in 8 bits, and tf32: which products, of which operands, and how far the results move.

#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "support/gpt2.h"

namespace brrr {
namespace {

/// Every size a multiple of 16, the 16 tokens of two rows, too.
models::Gpt2Config config_of(int64_t width = 32) {
  models::Gpt2Config c = test::tiny_gpt2();
  c.n_embd = width;
  c.n_head = 2;
  return c;
}

Graph trained(const models::Gpt2Config& config, bool fp8, const Target& target = {},
              PipelineReport* report = nullptr) {
  PipelineOptions p;
  p.loss = "loss";
  p.precision = DType::bf16;
  p.fp8 = fp8;
  p.verify = true;
  return run_pipeline(config.model()->loss(2, 8), target, p, report);
}

Target runs_all() {
  Target t;
  t.runs = [](const Graph& g, NodeId id) { return !is(g.node(id), Op::fused); };
  return t;
}

size_t count(const Graph& g, std::string_view op) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += node.op->name == op;
  return n;
}

TEST(Fp8, MultipliesTheBlocksAndNothingElse) {
  PipelineReport report;
  const Graph g = trained(config_of(), true, runs_all(), &report);
  // Four products of a block, each with two more backwards.
  EXPECT_EQ(count(g, "scaled_matmul"), 2u * 4 * 3);
  EXPECT_EQ(count(g, "matmul") + count(g, "linear"), 0u);
  EXPECT_EQ(count(g, "linear_cross_entropy_step"), 1u);
  // For each: the activation, the weight, the gradient; and nothing is quantised twice.
  EXPECT_EQ(count(g, "quantize"), 2u * 4 * 3);
  EXPECT_EQ(count(g, "quantize_scale"), 2u * 4 * 3);
  EXPECT_EQ(count(g, "transpose") - count(trained(config_of(), false, runs_all()), "transpose"),
            2u * 4 * 3);
  for (const Node& node : g.nodes()) {
    if (!is(node, Op::scaled_matmul)) continue;
    const DType a = g.type(node.operands[0]).dtype, b = g.type(node.operands[1]).dtype;
    const bool forward = node.attrs.get<bool>("fast_accumulation");
    EXPECT_EQ(a == DType::f8e4m3 && b == DType::f8e4m3, forward);
    EXPECT_FALSE(a == DType::f8e5m2 && b == DType::f8e5m2) << "two gradients";
  }
  for (const PassRecord& r : report) {
    if (r.name != "fp8_products") continue;
    ASSERT_EQ(r.notes.size(), 1u);
    EXPECT_EQ(r.notes[0], "24 products in 8 bits, of 24 tensors");
  }
}

TEST(Fp8, WeightsAreQuantisedFromTheirMasters) {
  const Graph g = trained(config_of(), true, runs_all());
  size_t from_parameters = 0;
  for (const Node& node : g.nodes())
    if (is(node, Op::quantize) && g.is_input(node.operands[0].node)) {
      EXPECT_EQ(g.type(node.operands[0]).dtype, DType::f32);
      ++from_parameters;
    }
  EXPECT_EQ(from_parameters, 8u);
}

TEST(Fp8, TheHeadStaysInBf16WhereItsLogitsAreWrittenOut) {
  PipelineOptions p;
  p.loss = "loss";
  p.precision = DType::bf16;
  p.fp8 = true;
  p.disabled = {"match_loss_head"};
  auto config = config_of();
  config.vocab_size = 48;
  const Graph g = run_pipeline(config.model()->loss(2, 8), runs_all(), p);
  EXPECT_EQ(count(g, "scaled_matmul"), 24u);
  EXPECT_EQ(count(g, "matmul"), 3u);
}

TEST(Fp8, OtherSizesStayInBf16) {
  PipelineReport report;
  const Graph g = trained(config_of(36), true, runs_all(), &report);
  EXPECT_EQ(count(g, "scaled_matmul"), 0u);
  bool noted = false;
  for (const PassRecord& r : report)
    for (const std::string& note : r.notes)
      noted |= note == "24 stay in 16: their sizes are not multiples of 16";
  EXPECT_TRUE(noted);
}

/// Where nothing multiplies in 8 bits the same numbers come of bf16 products.
TEST(Fp8, DecomposedItIsTheSame) {
  const auto config = config_of();
  const Graph whole = trained(config, true, runs_all()), parts = trained(config, true);
  EXPECT_EQ(count(parts, "scaled_matmul"), 0u);
  const reference::Tensors in = test::gpt2_inputs(whole, config, 3);
  EXPECT_LT(test::difference(reference::evaluate(whole, in), reference::evaluate(parts, in)), 1e-6);
}

/// The reference rounds where `quantize` stands and nowhere else.
TEST(Fp8, TheLossAndItsGradientsAreNear) {
  const auto config = config_of(64);
  const Graph exact = trained(config, false), rounded = trained(config, true);
  reference::Tensors in = test::gpt2_inputs(exact, config, 3);
  test::cool_weights(in);
  const auto wanted = reference::evaluate(exact, in), got = reference::evaluate(rounded, in);
  const double loss = wanted.at("loss").data[0];
  EXPECT_NEAR(got.at("loss").data[0], loss, 0.01 * std::fabs(loss));
  EXPECT_NE(got.at("loss").data[0], loss);
  for (const auto& [name, t] : wanted) {
    double gap = 0, norm = 0;
    for (size_t i = 0; i < t.data.size(); ++i) {
      gap += std::pow(t.data[i] - got.at(name).data[i], 2);
      norm += std::pow(t.data[i], 2);
    }
    // e5m2 rounds by an eighth at most; sums of many such errors are smaller.
    EXPECT_LT(std::sqrt(gap), 0.15 * std::sqrt(norm) + 1e-6) << name;
  }
}

/// GELU is computed for its scale and again for its copies, which wait for the scale.
TEST(Fp8, GeluIsNeverWritten) {
  const Graph g = trained(config_of(), true, runs_all());
  size_t again = 0;
  for (const Node& node : g.nodes()) {
    if (!is(node, Op::quantize)) continue;
    NodeId from = node.operands[0].node;
    while (is(g.node(from), Op::reshape)) from = g.node(from).operands[0].node;
    if (!is(g.node(from), Op::gelu)) continue;
    EXPECT_EQ(g.node(g.node(from).operands[0].node).op->name, "after");
    ++again;
  }
  EXPECT_EQ(again, 2u);
  EXPECT_EQ(count(g, "gelu"), 4u);
}

TEST(Fp8, ScalesArePowersOfTwoThatFit) {
  const auto scale = [](double x, DType t) {
    Graph g;
    g.output("y", quantize_scale(g.input("x", {2}, DType::f64), t));
    return reference::evaluate(g, {{"x", {{DType::f64, {2}}, {x / 3, -x}}}}).at("y").data[0];
  };
  EXPECT_EQ(scale(448, DType::f8e4m3), 1);
  EXPECT_EQ(scale(448.1, DType::f8e4m3), 2);
  EXPECT_EQ(scale(1, DType::f8e4m3), 0x1p-8);
  EXPECT_EQ(scale(1.75, DType::f8e4m3), 0x1p-8);
  EXPECT_EQ(scale(1.76, DType::f8e4m3), 0x1p-7);
  EXPECT_EQ(scale(57344, DType::f8e5m2), 1);
  EXPECT_EQ(scale(0, DType::f8e5m2), 1);
  EXPECT_EQ(scale(1e-38, DType::f8e4m3), 0x1p-100);
  EXPECT_TRUE(std::isnan(scale(INFINITY, DType::f8e4m3)));
  EXPECT_TRUE(std::isnan(scale(NAN, DType::f8e4m3)));
}

TEST(Tf32, IsAllowedWhereTheTargetHasIt) {
  Target target = runs_all();
  for (const bool has : {false, true}) {
    target.has_tf32 = has;
    PipelineOptions p;
    p.loss = "loss";
    p.matmul_precision = MatmulPrecision::high;
    p.verify = true;
    const Graph g = run_pipeline(config_of().model()->loss(2, 8), target, p);
    size_t allowed = 0, products = 0;
    for (const Node& node : g.nodes()) {
      if (node.op->op_class != OpClass::contraction || node.op->name.starts_with("attention"))
        continue;
      ++products;
      allowed += node.attrs.get_or<bool>("tf32", false);
    }
    EXPECT_EQ(allowed, has ? products : 0u);
    if (has) {
      EXPECT_EQ(products, 25u);
    }
  }
}

}  // namespace
}  // namespace brrr
