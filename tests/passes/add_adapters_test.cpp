// Adapters in graphs: what a product becomes, and how far the backward pass goes.

#include "passes/adapters/add_adapters.h"

#include <gtest/gtest.h>

#include "backend/reference/interpreter.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "support/gpt2.h"
#include "support/tensors.h"

namespace brrr {
namespace {

/// x W + b, and the head y = tanh(...) Vᵀ.
struct TwoLayers {
  TwoLayers() {
    const Value h = tanh(linear(x, w, b));
    g.output("y", matmul(h, v, false, true));
  }
  Graph g;
  Value x = g.input("x", {2, 3, 4}, DType::f32);
  Value w = g.parameter("w", {4, 5}), b = g.parameter("b", {5}), v = g.parameter("v", {6, 5});
};

ProductAdapter adapter_of(const std::string& weight, const std::string& name) {
  return {.weight = weight, .a = name + ".a", .b = name + ".b", .rank = 2, .scale = 0.75};
}

TEST(AddAdapters, AddsALowRankMatrixToTheWeight) {
  const TwoLayers net;
  const std::vector<ProductAdapter> adapters{adapter_of("w", "p"), adapter_of("v", "q"),
                                             adapter_of("v", "r"), adapter_of("absent", "s")};
  const Graph out = add_adapters(net.g, adapters, AdapterUse::inference);
  EXPECT_EQ(out.find_input("s.a"), kNoNode);
  Graph expected;
  {
    const Value x = expected.input("x", {2, 3, 4}, DType::f32);
    const Value w = expected.parameter("w", {4, 5}), b = expected.parameter("b", {5});
    const Value v = expected.parameter("v", {6, 5});
    const auto change = [&](const char* name, int64_t in, int64_t of) {
      return matmul(expected.parameter(std::string(name) + ".b", {of, 2}),
                    expected.parameter(std::string(name) + ".a", {2, in})) *
             0.75;
    };
    const Value h = tanh(linear(x, w + transpose(change("p", 4, 5), {1, 0}), b));
    expected.output("y", matmul(h, v + change("q", 5, 6) + change("r", 5, 6), false, true));
  }
  const reference::Tensors in = test::random_inputs(expected, 3, -1, 1, 3);
  EXPECT_LT(test::difference(reference::evaluate(expected, in), reference::evaluate(out, in)),
            1e-12);
}

TEST(AddAdapters, AFactorLeavesTheBias) {
  const TwoLayers net;
  ProductAdapter adapter = adapter_of("w", "p");
  adapter.factor = "p.factor";
  const Graph out = add_adapters(net.g, std::vector{adapter}, AdapterUse::inference);
  Graph expected;
  const Value x = expected.input("x", {2, 3, 4}, DType::f32);
  const Value w = expected.parameter("w", {4, 5}), b = expected.parameter("b", {5});
  const Value v = expected.parameter("v", {6, 5});
  const Value low = matmul(expected.parameter("p.b", {5, 2}), expected.parameter("p.a", {2, 4}));
  const Value sum = matmul(x, w + transpose(low * 0.75, {1, 0}));
  const Value h = tanh(sum * expected.parameter("p.factor", {5}) + b);
  expected.output("y", matmul(h, v, false, true));
  const reference::Tensors in = test::random_inputs(expected, 3, -1, 1, 3);
  EXPECT_LT(test::difference(reference::evaluate(expected, in), reference::evaluate(out, in)),
            1e-12);
}

// Frozen weights have no gradients, and nothing below the lowest adapter has one.
TEST(AddAdapters, TheBackwardPassEndsAtTheLowestAdapter) {
  TwoLayers net;
  net.g.output("loss", sum(net.g.value(net.g.outputs()[0].value), {0, 1, 2}));
  for (const NodeId id : net.g.inputs(InputKind::parameter)) net.g.freeze(id);
  const auto products_backward = [&](const char* weight) {
    const Graph adapted =
        add_adapters(net.g, std::vector{adapter_of(weight, "p")}, AdapterUse::training);
    const Graph out = drop_dead(differentiate(adapted, "loss"));
    size_t gradients = 0, products = 0;
    for (const Output& o : out.outputs()) gradients += o.gradient_of != kNoNode;
    EXPECT_EQ(gradients, 2u);
    for (NodeId id = 0; id < out.size(); ++id)
      products += out.phase(id) == Phase::backward && is(out.node(id), Op::matmul);
    return products;
  };
  EXPECT_EQ(products_backward("v"), 3u);  // of A, of B, and between them
  EXPECT_EQ(products_backward("w"), 4u);  // and through the head
}

TEST(AddAdapters, DropsElementsOnlyInTraining) {
  const TwoLayers net;
  ProductAdapter adapter = adapter_of("w", "p");
  adapter.dropout = 0.5;
  const auto has_key = [&](AdapterUse use) {
    return add_adapters(net.g, std::vector{adapter}, use).find_input("rng_key") != kNoNode;
  };
  EXPECT_TRUE(has_key(AdapterUse::training));
  EXPECT_FALSE(has_key(AdapterUse::inference));
}

}  // namespace
}  // namespace brrr
