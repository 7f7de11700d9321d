// Weights of products as integers: which products are quantised, and what their results become.

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "passes/weights/weight_choice.h"
#include "support/gpt2.h"
#include "support/tensors.h"

namespace brrr {
namespace {

Target that_runs_everything() {
  Target target;
  target.runs = [](const Graph&, NodeId) { return true; };
  return target;
}

size_t quantized_products(const Graph& g) {
  size_t n = 0;
  for (NodeId id = 0; id < g.size(); ++id)
    if (g.node(id).op->product && g.type(g.node(id).operands[1]).storage.is_quantized()) ++n;
  return n;
}

constexpr int64_t kTerms = 128, kColumns = 160;

Graph one_product(bool transposed, bool has_bias) {
  Graph g;
  const Value x = g.input("x", {3, kTerms}, DType::f32);
  const Value w = g.parameter("w", transposed ? Shape{kColumns, kTerms} : Shape{kTerms, kColumns});
  g.output("y",
           has_bias ? linear(x, w, g.parameter("b", {kColumns})) : matmul(x, w, false, transposed));
  return g;
}

TEST(QuantizeWeights, ResultsStayNear) {
  for (const auto& [transposed, has_bias] : {std::pair(false, false), {true, false}, {false, true}})
    for (const auto& [quantization, most] : {std::pair(Quantization{8, 0, false}, 0.02),
                                             {Quantization{8, 0, true}, 0.03},
                                             {Quantization{8, 32, true}, 0.03},
                                             {Quantization{4, 32, false}, 0.25}}) {
      const Graph g = one_product(transposed, has_bias);
      Notes notes;
      const Graph out = quantize_weights(g, that_runs_everything(), quantization, &notes);
      EXPECT_EQ(quantized_products(out), 1u);
      EXPECT_EQ(notes.size(), 1u);
      const reference::Tensors in = test::random_inputs(g, 3, -1, 1, 3);
      const double difference =
          test::difference(reference::evaluate(g, in), reference::evaluate(out, in));
      EXPECT_GT(difference, 0);
      EXPECT_LT(difference, most) << quantization.bits << " bits, groups of " << quantization.group;
    }
}

/// Rows of a table, multiplied by the same table as a head.
Graph tied_head() {
  Graph g;
  const Value table = g.parameter("table", {kColumns, kTerms});
  const Value x = embedding(table, g.input("ids", {5}, DType::i32));
  g.output("logits", matmul(x * 2.0, table, false, true));
  return g;
}

TEST(QuantizeWeights, TiedTablesReadTheIntegersOfTheHead) {
  const Graph g = tied_head();
  for (const Quantization& q : {Quantization{8, 0, true}, Quantization{8, 32, false}}) {
    const Graph out = quantize_weights(g, cpu::cpu_backend().target(), q);
    ValueId table, head;
    for (NodeId id = 0; id < out.size(); ++id) {
      if (is(out.node(id), Op::embedding)) table = out.node(id).operands[0];
      if (out.node(id).op->product) head = out.node(id).operands[1];
    }
    EXPECT_EQ(table, head);
    EXPECT_TRUE(out.type(table).storage.is_quantized());
    const reference::Tensors in = test::random_inputs(g, 3, -1, 1, kColumns);
    EXPECT_LT(test::difference(reference::evaluate(g, in), reference::evaluate(out, in)), 0.04);
    // The table is an input in one form.
    const Graph whole = run_pipeline(g, cpu::cpu_backend().target(),
                                     for_inference(DType::bf16, WeightQuantization(q)));
    EXPECT_EQ(whole.find_input("table"), kNoNode);
  }
}

TEST(QuantizeWeights, TablesOfFourBitsStayFloats) {
  const Graph out =
      quantize_weights(tied_head(), cpu::cpu_backend().target(), Quantization{4, 32, true});
  EXPECT_EQ(quantized_products(out), 1u);
  for (NodeId id = 0; id < out.size(); ++id)
    if (is(out.node(id), Op::embedding)) {
      EXPECT_TRUE(out.type(out.node(id).operands[0]).storage.is_plain());
    }
}

TEST(QuantizeWeights, OnlyChosenWeightsAreQuantized) {
  Graph g;
  const Value x = g.input("x", {3, kTerms}, DType::f32);
  const Value a = g.parameter("a", {kColumns, kTerms}), b = g.parameter("b", {kColumns, kTerms});
  g.output("y", matmul(x, a, false, true));
  g.output("z", matmul(x, b, false, true));
  const auto quantized_with = [&](std::shared_ptr<const ParameterSet> chosen) {
    const WeightQuantization q{{8, 0, true}, std::move(chosen)};
    return quantized_products(quantize_chosen_weights(g, that_runs_everything(), q));
  };
  EXPECT_EQ(quantized_with(nullptr), 2u);
  EXPECT_EQ(quantized_with(std::make_shared<const ParameterSet>(ParameterSet{"b"})), 1u);
  EXPECT_EQ(quantized_with(std::make_shared<const ParameterSet>()), 0u);
}

TEST(QuantizeWeights, JoinedWeightsAreQuantizedAsOne) {
  Graph g;
  const Value x = g.input("x", {3, kTerms}, DType::f32);
  for (const char* name : {"q", "k", "v"})
    g.output(name, matmul(x, g.parameter(name, {kColumns, kTerms}), false, true));
  const Graph out = quantize_weights(join_products(g), that_runs_everything(), {.bits = 8});
  EXPECT_EQ(quantized_products(out), 1u);
}

TEST(QuantizeWeights, ProductsThatStay) {
  Graph g;
  const Value x = g.input("x", {3, kTerms}, DType::f32);
  g.output("few columns", matmul(x, g.parameter("a", {kTerms, 2})));
  g.output("small", matmul(g.input("s", {3, 64}, DType::f32), g.parameter("b", {64, 64})));
  g.output("no parameter", matmul(x, g.input("w", {kTerms, kColumns}, DType::f32)));
  g.output("left transposed", matmul(g.input("z", {kTerms, 3}, DType::f32),
                                     g.parameter("c", {kTerms, kColumns}), true, false));
  EXPECT_EQ(quantize_weights(g, that_runs_everything(), {.bits = 8}), g);
}

TEST(QuantizeWeights, TargetWithoutKernelIsRefused) {
  const Graph g = one_product(false, false);
  EXPECT_THROW(quantize_weights(g, Target(), {.bits = 8}), UserError);
}

TEST(QuantizeWeights, LoaderKeepsIntegersInPlaceOfParameters) {
  for (const Precision precision : {Precision::int8, Precision::int8_weight_only, Precision::int4,
                                    Precision::int4_weight_only}) {
    const PipelineOptions options =
        for_inference(DType::bf16, quantization_of_precision(precision));
    const Graph out = run_pipeline(one_product(true, false), cpu::cpu_backend().target(), options);
    EXPECT_EQ(quantized_products(out), 1u) << name_of(precision);
    EXPECT_EQ(out.find_input("w"), kNoNode) << "the parameter is not kept";
    const int64_t bits = options.quantization.bits;
    int64_t bytes = 0;
    for (const NodeId id : out.inputs())
      if (out.role(id) != Role::data) bytes += out.type({id, 0}).bytes();
    const int64_t group = options.quantization.group;
    EXPECT_EQ(bytes,
              kTerms * kColumns * bits / 8 + 4 * kColumns * (group == 0 ? 1 : kTerms / group));
  }
}

/// Two convolutions, the first of which has too few terms, and a weight with folded factors.
Graph convolutions_last() {
  Graph g;
  const Windows same{{1, 1}, {1, 1}, {1, 1, 1, 1}, true};
  const Value x = g.input("x", {2, 6, 7, 3}, DType::f32);
  const Value first = conv(x, g.parameter("a", {32, 3, 3, 3}), std::nullopt, same, 1);
  const Value folded = g.parameter("b", {40, 32, 3, 3}) * g.parameter("s", {40, 1, 1, 1});
  g.output("y", conv(relu(first), folded, g.parameter("c", {40}), same, 1));
  return g;
}

size_t quantized_convolutions(const Graph& g) {
  size_t n = 0;
  for (const Node& node : g.nodes())
    n += is(node, Op::conv) && node.attrs.get_or<int64_t>("left_bits", 0) == 8 &&
         g.type(node.operands[1]).storage.is_quantized();
  return n;
}

TEST(QuantizeWeights, ConvolutionsWithChannelsLast) {
  const Graph g = convolutions_last();
  Notes notes;
  const Graph out = quantize_weights(g, that_runs_everything(), {8, 0, true}, &notes);
  EXPECT_EQ(quantized_convolutions(out), 1u);
  EXPECT_EQ(notes, Notes{"1 convolution of 11,520 weights in 8 bits, pictures in 8 bits"});
  const reference::Tensors in = test::random_inputs(g, 3, -1, 1, 3);
  const double difference =
      test::difference(reference::evaluate(g, in), reference::evaluate(out, in));
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, 0.03);
  // Weight-only forms and 4 bits multiply no integers.
  for (const Quantization& q : {Quantization{8, 0, false}, Quantization{4, 32, true}})
    EXPECT_EQ(quantize_weights(g, that_runs_everything(), q), g);
  // A target without a kernel for it; the weight alone is chosen, not its factors.
  EXPECT_EQ(quantize_weights(g, Target(), {8, 0, true}), g);
  for (const bool chosen : {false, true}) {
    const WeightQuantization q{
        {8, 0, true}, std::make_shared<const ParameterSet>(ParameterSet{chosen ? "b" : "a"})};
    const Graph some = quantize_chosen_weights(g, that_runs_everything(), q);
    EXPECT_EQ(quantized_convolutions(some), chosen ? 1u : 0u);
  }
}

TEST(QuantizeWeights, LoaderKeepsIntegersOfConvolutions) {
  const PipelineOptions options =
      for_inference(DType::bf16, quantization_of_precision(Precision::int8));
  const Graph out = run_pipeline(convolutions_last(), cpu::cpu_backend().target(), options);
  EXPECT_EQ(out.find_input("b"), kNoNode) << "the parameter is not kept";
}

}  // namespace
}  // namespace brrr
