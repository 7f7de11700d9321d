// Predictions from rates that kernels reach: which rate a node is given, and what stands between
// the sizes that were measured. No time is judged here.
#include "machine/kernel_speed.h"

#include <gtest/gtest.h>

#include <cmath>

#include "machine/speed.h"
#include "ops/ops.h"

namespace brrr::machine {
namespace {

constexpr size_t kProductSizes =
    std::size(kProductRows) * std::size(kProductColumns) * std::size(kProductTerms);
constexpr size_t kAttentionSizes = std::size(kAttentionLengths) * std::size(kAttentionWidths);

ProductSpeed flat(DType dtype, double flops, bool ta = false, bool tb = false,
                  bool packed = false) {
  return {dtype, ta, tb, packed, std::vector<double>(kProductSizes, flops)};
}

/// A machine whose bf16 products run at a fifth of what its registers would give.
MachineSpeed sample_machine() {
  KernelSpeed k;
  k.products = {flat(DType::f32, 1e11),        flat(DType::bf16, 8e11),
                flat(DType::bf16, 4e11, true), flat(DType::bf16, 9e11, false, false, true),
                flat(DType::i8, 2e12),         flat(DType::i8, 3e12, false, false, true)};
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool gradient : {false, true})
      k.attention.push_back({dtype, gradient, std::vector<double>(kAttentionSizes, 5e10), 2});
  k.elements = {{"gelu", 2e-9}, {"add", 1e-10}};
  k.chained = 1e-11;
  k.l2 = 4e11;
  k.l3 = 2e11;
  k.memory = 2e10;
  k.l2_bytes = 1 << 20;
  k.l3_bytes = 32 << 20;
  MachineSpeed s{2e11, 4e12, 0, 3e10, 4e11, 1 << 20, "measured now"};
  s.kernels = std::make_shared<KernelSpeed>(k);
  return s;
}

double seconds_of(const Graph& g) {
  return predict_node(g, static_cast<NodeId>(g.size() - 1), sample_machine());
}

Graph product(DType dtype, int64_t m, int64_t n, int64_t k, bool ta = false, bool packed = false) {
  Graph g;
  Type b{dtype, {k, n}};
  if (packed) b.storage.layout = Layout::panels;
  const Value left = g.input("a", {dtype, ta ? Shape{k, m} : Shape{m, k}}, Role::state);
  g.output("y", matmul(left, g.input("b", b, Role::state), ta, false));
  return g;
}

TEST(KernelSpeed, AProductTakesTheRateOfItsDtypeAndItsOperandsNotThePeak) {
  const double flops = 2.0 * 512 * 512 * 512;
  EXPECT_NEAR(seconds_of(product(DType::f32, 512, 512, 512)), flops / 1e11, 1e-9);
  EXPECT_NEAR(seconds_of(product(DType::bf16, 512, 512, 512)), flops / 8e11, 1e-9);
  EXPECT_NEAR(seconds_of(product(DType::bf16, 512, 512, 512, true)), flops / 4e11, 1e-9);
  EXPECT_NEAR(seconds_of(product(DType::bf16, 512, 512, 512, false, true)), flops / 9e11, 1e-9);
  EXPECT_NEAR(seconds_of(product(DType::i8, 512, 512, 512)), flops / 2e12, 1e-9);
  EXPECT_NEAR(seconds_of(product(DType::f16, 512, 512, 512)), flops / 8e11, 1e-9)
      << "f16 is widened as bf16 is";
}

TEST(KernelSpeed, AProductThatQuantisesItsRowsTakesTheRateOfIntegers) {
  Graph g;
  Type b{DType::bf16, {512, 512}};
  b.storage = {Layout::panels, {.bits = 8, .axis = 0, .group = 0}};
  const std::vector<Value> operands{g.input("a", {DType::bf16, {512, 512}}, Role::state),
                                    g.input("b", b, Role::state)};
  g.output("y",
           call(Op::matmul, operands,
                {{"transpose_a", false}, {"transpose_b", false}, {"left_bits", int64_t{8}}})[0]);
  const double flops = 2.0 * 512 * 512 * 512;
  EXPECT_NEAR(seconds_of(g), flops / 3e12, 1e-9);
  // Where only the peaks are known.
  MachineSpeed peaks{2e11, 4e11, 0, 1e12, 1e12, 1 << 30, "measured now"};
  const auto seconds = [&] { return predict_node(g, static_cast<NodeId>(g.size() - 1), peaks); };
  const double without_unit = seconds();
  peaks.int8 = 4e12;
  EXPECT_LT(seconds(), without_unit / 5);
}

TEST(KernelSpeed, AProductOfFewRowsWaitsForItsWeights) {
  const Graph g = product(DType::f32, 1, 4096, 4096);
  EXPECT_NEAR(seconds_of(g), 4.0 * 4096 * (4096 + 1 + 1) / 2e10, 1e-5);
}

TEST(KernelSpeed, ElementsTakeTheirOwnTimeOrThatOfTheirBytes) {
  Graph g;
  g.output("y", gelu(g.input("x", {DType::f32, {1000, 100}}, Role::state)));
  EXPECT_NEAR(seconds_of(g), 1e5 * 2e-9, 1e-9);
  Graph large;
  const Value x = large.input("x", {DType::f32, {10'000'000}}, Role::state);
  large.output("y", x + x);
  EXPECT_GT(seconds_of(large), 7e7 / 2e10) << "80 MB or more go through memory";
}

TEST(KernelSpeed, AttentionWithDropoutTakesItsFactor) {
  const auto seconds = [](double p) {
    Graph g;
    const Shape shape{1, 4, 256, 64};
    const Value q = g.input("q", {DType::f32, shape}, Role::state);
    AttentionOptions o;
    o.causal = true;
    o.p = p;
    if (p > 0) o.key = g.input("key", {DType::i32, {2}}, Role::state);
    g.output("y", attention(q, q, q, o).y);
    return seconds_of(g);
  };
  EXPECT_NEAR(seconds(0.1) / seconds(0), 2, 0.01);
}

TEST(KernelSpeed, RatesBetweenTheMeasuredSizesLieBetweenTheirRates) {
  ProductSpeed s = flat(DType::f32, 1e10);
  const size_t last = s.flops.size() - 1;
  s.flops[last] = 4e10;  // 768 x 768 x 768
  EXPECT_NEAR(product_flops(s, 768, 768, 768), 4e10, 1);
  EXPECT_NEAR(product_flops(s, 4096, 50257, 12288), 4e10, 1) << "beyond the grid: its edge";
  EXPECT_NEAR(product_flops(s, 1, 1, 1), 1e10, 1);
  // The time of an operation is linear in 1 / size: 1 / 118.15 is half way from 1 / 64 to 1 / 768.
  EXPECT_NEAR(product_flops(s, 768, 768, 118), 1.6e10, 1e8);
  EXPECT_NEAR(product_flops(s, 128, 768, 768), 1e10, 1) << "the next size below";
}

TEST(KernelSpeed, IsKeptAsItIs) {
  const KernelSpeed k = *sample_machine().kernels;
  EXPECT_EQ(kernel_speed_from_json(to_json(k)), k);
  EXPECT_ANY_THROW(kernel_speed_from_json("{}"));
  std::string zero = to_json(k);
  zero.replace(zero.find("800000000000.0"), 14, "0");
  EXPECT_ANY_THROW(kernel_speed_from_json(zero)) << "a rate of 0 is none";
}

TEST(KernelSpeed, IsMeasuredForEveryKindOfNode) {
  const KernelSpeed k = measure_kernels(1 << 22);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i8, DType::f8e4m3})
    for (const bool ta : {false, true})
      for (const bool packed : {false, true})
        ASSERT_NE(k.find_product(dtype, ta, false, packed), nullptr) << name_of(dtype);
  for (const ProductSpeed& p : k.products) {
    EXPECT_EQ(p.flops.size(), kProductSizes);
    for (const double rate : p.flops) EXPECT_GT(rate, 0);
  }
  for (const char* op : {"gelu", "gelu_grad", "layer_norm", "layer_norm_grad", "rms_norm", "silu",
                         "softmax", "dropout", "exp", "cast", "add", "mul"})
    EXPECT_TRUE(k.elements.contains(op)) << op;
  EXPECT_GT(k.l2, 0);
  EXPECT_GT(k.memory, 0);
  EXPECT_GT(k.node_seconds, 0);
  EXPECT_GT(k.head, 0);
  EXPECT_EQ(kernel_speed_from_json(to_json(k)), k);
}

TEST(PredictedTimes, HaveTwoDigits) {
  EXPECT_EQ(predicted_duration(13.28), "13 ms");
  EXPECT_EQ(predicted_duration(0.4249), "0.42 ms");
  EXPECT_EQ(predicted_duration(3.96), "4.0 ms");
  EXPECT_EQ(predicted_duration(9.97), "10 ms");
  EXPECT_EQ(predicted_duration(0.0123), "0.012 ms");
  EXPECT_EQ(predicted_duration(755), "760 ms");
  EXPECT_EQ(predicted_duration(999), "1.0 s");
  EXPECT_EQ(predicted_duration(12029), "12 s");
  EXPECT_EQ(predicted_duration(123456), "120 s");
  EXPECT_EQ(predicted_duration(0), "0 ms");
}

TEST(PredictedTimes, SayByWhichRates) {
  const MachineSpeed kernels = sample_machine();
  EXPECT_EQ(rates_text(kernels, DType::bf16),
            "products of bf16: 0.80 TFLOP/s; 20 GB/s; measured now");
  EXPECT_EQ(rates_text(kernels, DType::i8), "products of i8: 3.0 TOP/s; 20 GB/s; measured now");
  MachineSpeed peaks = kernels;
  peaks.kernels = nullptr;
  EXPECT_EQ(rates_text(peaks, DType::bf16), "peak of bf16: 4.0 TFLOP/s; 30 GB/s; measured now");
}

}  // namespace
}  // namespace brrr::machine
