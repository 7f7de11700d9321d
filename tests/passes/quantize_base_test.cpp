// The pass quantize_base: weights below adapters are held as integers, each product reads floats
// that are made of them, and gradients are those of the rounded weights.

#include <gtest/gtest.h>

#include "backend/reference/interpreter.h"
#include "base/storage.h"
#include "ops/ops.h"
#include "passes/adapters/add_adapters.h"
#include "passes/pipeline.h"
#include "support/tensors.h"

namespace brrr {
namespace {

constexpr int64_t kBatch = 3, kBaseWidth = 160, kAdapterRank = 4;

/// Two layers with an adapter each: x w + (x a) b, and the same for w2, which is transposed.
Graph layers() {
  Graph g;
  Value x = g.input("x", {DType::f32, {kBatch, kBaseWidth}});
  const auto weight = [&](const std::string& name, const Shape& shape) {
    return g.input(name, {DType::f32, shape}, InputKind::parameter);
  };
  for (const char* layer : {"1", "2"}) {
    const std::string n = layer;
    const Value w = weight("w" + n, {kBaseWidth, kBaseWidth});
    put_below_adapters(g, w.id.node);
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

TEST(QuantizeBase, WhatOthersReadStaysFloats) {
  Graph g = layers();
  g.output("w", g.value(g.find_input("w2")));
  const Graph out = run_pipeline(g, Target{}, options_with({.bits = 4, .group = 32}));
  EXPECT_EQ(out.find_input("w1"), kNoNode);
  EXPECT_NE(out.find_input("w2"), kNoNode);
}

}  // namespace
}  // namespace brrr
