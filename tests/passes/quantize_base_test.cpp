// The pass quantize_base: weights below adapters are held as integers, each product reads floats
// that are made of them, and gradients are those of the rounded weights.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "backend/reference/interpreter.h"
#include "base/storage.h"
#include "ops/ops.h"
#include "passes/adapters/add_adapters.h"
#include "passes/pipeline.h"
#include "passes/weights/derived_weight.h"
#include "support/tensors.h"

namespace brrr {
namespace {

constexpr int64_t kBatch = 3, kBaseWidth = 192, kAdapterRank = 4;

/// Two layers with an adapter each: x w + (x a) b, and the same for w2, which is transposed.
/// `form`: of both.
Graph layers(const BaseForm& form = {}) {
  Graph g;
  Value x = g.input("x", {DType::f32, {kBatch, kBaseWidth}});
  const auto weight = [&](const std::string& name, const Shape& shape) {
    return g.input(name, {DType::f32, shape}, InputKind::parameter);
  };
  for (const char* layer : {"1", "2"}) {
    const std::string n = layer;
    const Value w = weight("w" + n, {kBaseWidth, kBaseWidth});
    put_below_adapters(g, w.id.node);
    set_base_form(g, w.id.node, form);
    const Value low = matmul(x, weight("a" + n, {kBaseWidth, kAdapterRank}));
    x = matmul(x, w, false, n == "2") + matmul(low, weight("b" + n, {kAdapterRank, kBaseWidth}));
  }
  g.output("loss", mean(x * x, {0, 1}));
  return g;
}

PipelineOptions options_with(const Quantization& quantization) {
  PipelineOptions options;
  options.loss = "loss";
  options.base_quantization = quantization;
  return options;
}

TEST(QuantizeBase, GradientsAreThoseOfTheRoundedWeights) {
  for (const Quantization& q : {Quantization{.bits = 4, .group = 32}, Quantization{.bits = 8}}) {
    const Graph floats = run_pipeline(layers(), Target{}, options_with({}));
    const Graph integers = run_pipeline(layers(), Target{}, options_with(q));
    test::Random random(3);
    reference::Tensors in;
    for (const NodeId id : floats.inputs())
      in[floats.input_name(id)] = test::random_tensor(floats.type({id, 0}), -1, 1, random);
    reference::Tensors of_integers = in;
    int64_t replaced = 0, made = 0;
    for (const NodeId id : integers.inputs()) {
      const std::string& name = integers.input_name(id);
      EXPECT_NE(name, "w1");
      EXPECT_NE(name, "w2");
      if (integers.role(id) != Role::derived) continue;
      // Both graphs get the values that the integers represent.
      const Type& type = integers.type({id, 0});
      ASSERT_TRUE(type.storage.is_quantized());
      RefTensor& w = in.at(name.substr(0, 2));
      const std::vector<double> before = w.data;
      std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
      write_floats(type.storage, type.dtype, type.shape, w.data, bytes.data());
      read_floats(type.storage, type.dtype, type.shape, bytes.data(), w.data);
      EXPECT_NE(w.data, before);
      RefTensor stored = w;
      stored.type = type;
      of_integers[name] = stored;
      of_integers.erase(name.substr(0, 2));
      ++replaced;
    }
    EXPECT_EQ(replaced, 2);
    for (const Node& node : integers.nodes())
      made += is(node, Op::store) && node.results[0].storage.is_plain() ? 1 : 0;
    EXPECT_EQ(made, 3);  // w1 for the forward pass, w2 for both
    const auto wanted = reference::evaluate(floats, in);
    const auto got = reference::evaluate(integers, of_integers);
    EXPECT_EQ(wanted.size(), got.size());
    EXPECT_GE(got.size(), 5u);  // the loss, and a gradient of each part of an adapter
    EXPECT_LE(test::difference(wanted, got), 1e-6);
  }
}

/// The graph as a training step compiles it.
Graph step_over(const BaseForm& form, int bits, DType dtype) {
  PipelineOptions options = options_with({.bits = bits});
  options.precision = options.base_dtype = dtype;
  options.refresher = Refresher::update;
  return run_pipeline(layers(form), Target{}, options);
}

// Integers of the file: w2, which is transposed, is made of them; w1 of floats, if at all.
TEST(QuantizeBase, IntegersOfTheFileAreKept) {
  for (const int bits : {0, 8}) {
    const Graph g = step_over({storage_from_name("transposed_panels_of_int4_along_1_by_32")}, bits,
                              DType::bf16);
    std::map<std::string, DerivedWeight> weights;  // by the first source
    for (const NodeId id : g.inputs())
      if (const auto weight = derived_weight(g.node(id).attrs);
          weight && weight->type().storage.is_quantized())
        weights.emplace(weight->sources[0], *weight);
    ASSERT_TRUE(weights.contains("w2:int4"));
    EXPECT_EQ(weights.at("w2:int4").sources, (std::vector<std::string>{"w2:int4", "w2:scales"}));
    EXPECT_EQ(weights.at("w2:int4").type().storage.quantized.bits, 4);
    EXPECT_EQ(weights.contains("w1"), bits == 8);
  }
}

// Blocks of the file: the parameters lie in them, under the name of the tensor that has them, and
// every product makes its own floats.
TEST(QuantizeBase, BlocksOfTheFileAreKept) {
  for (const BaseForm& form : {BaseForm{storage_from_name("blocks_of_Q8_0")},
                               BaseForm{storage_from_name("blocks_of_NF4"), "w:blocks"}})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Graph before = layers();
      for (const char* name : {"w1", "w2"})
        set_base_form(before, before.find_input(name),
                      {form.storage, form.tensor.empty() ? "" : name + std::string(":blocks")});
      PipelineOptions options = options_with({});
      options.precision = options.base_dtype = dtype;
      options.refresher = Refresher::update;
      const Graph g = run_pipeline(before, Target{}, options);
      for (const std::string name : {"w1", "w2"}) {
        const NodeId id = g.find_input(form.tensor.empty() ? name : name + ":blocks");
        ASSERT_NE(id, kNoNode) << name;
        EXPECT_EQ(g.type({id, 0}).storage, form.storage);
        EXPECT_EQ(g.role(id), Role::parameter);
      }
      int64_t made = 0;
      for (const Node& node : g.nodes())
        if (is(node, Op::store)) {
          EXPECT_EQ(node.results[0].dtype, dtype);
          ++made;
        }
      EXPECT_EQ(made, 3);  // w1 for the forward pass, w2 for both
      for (const NodeId id : g.inputs())
        if (g.role(id) == Role::derived) {
          EXPECT_FALSE(g.input_name(id).starts_with("w")) << g.input_name(id);
        }
    }
}

// Blocks that are made: of the floats of the source, before they are rounded to 16 bits.
TEST(QuantizeBase, BlocksAreMadeOfFloats) {
  const Graph g = step_over({storage_from_name("blocks_of_NF4"), "", true}, 0, DType::bf16);
  int64_t found = 0;
  for (const NodeId id : g.inputs())
    if (const auto weight = derived_weight(g.node(id).attrs);
        weight && weight->type().storage.is_blocks()) {
      const Graph& form = weight->form.graph();
      EXPECT_EQ(form.type({form.inputs()[0], 0}), (Type{DType::f32, {kBaseWidth, kBaseWidth}}));
      EXPECT_EQ(weight->type().bytes(), kBaseWidth * kBaseWidth / 64 * 36);
      ++found;
    }
  EXPECT_EQ(found, 2);
}

TEST(QuantizeBase, WhatOthersReadStaysFloats) {
  Graph g = layers();
  g.output("w", g.value(g.find_input("w2")));
  const Graph out = run_pipeline(g, Target{}, options_with({.bits = 4, .group = 32}));
  EXPECT_EQ(out.find_input("w1"), kNoNode);
  EXPECT_NE(out.find_input("w2"), kNoNode);
}

}  // namespace
}  // namespace brrr
