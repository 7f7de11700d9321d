// The pass fake_quantize: chosen products read operands rounded to the grid of their integers, and
// gradients pass the rounding unchanged.

#include "passes/precision/fake_quantize.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/reference/interpreter.h"
#include "ops/ops.h"
#include "support/temp_folder.h"
#include "support/tensors.h"

namespace brrr {
namespace {

constexpr int64_t kInputs = 128, kOutputs = 160, kRowsOfProduct = 3;

/// y = x wᵀ, or x w for a weight stored as [inputs, outputs]; the loss is the sum of y g.
Graph product_graph(bool transposed) {
  Graph g;
  const Value x = g.input("x", {DType::f32, {kRowsOfProduct, kInputs}});
  const Value w =
      g.input("w", {DType::f32, transposed ? Shape{kOutputs, kInputs} : Shape{kInputs, kOutputs}},
              InputKind::parameter);
  const Value factors = g.input("g", {DType::f32, {kRowsOfProduct, kOutputs}});
  const Value y = matmul(x, w, false, transposed);
  g.output("y", y);
  g.output("loss", sum(y * factors, {0, 1}));
  return g;
}

reference::Tensors operands(const Graph& g) {
  test::Random random(11);
  reference::Tensors tensors;
  for (NodeId id = 0; id < g.size(); ++id)
    if (g.is_input(id))
      tensors[g.input_name(id)] = test::random_tensor(g.type({id, 0}), -2, 2, random);
  return tensors;
}

/// Every `stride`-th of `count` numbers from `first`, rounded with one scale.
void round_stretch(RefTensor& t, int64_t first, int64_t stride, int64_t count, int most) {
  double top = 0;
  for (int64_t i = 0; i < count; ++i)
    top = std::fmax(top, std::fabs(t.data[static_cast<size_t>(first + i * stride)]));
  const double scale = static_cast<double>(static_cast<float>(top / most));
  for (int64_t i = 0; i < count; ++i) {
    double& x = t.data[static_cast<size_t>(first + i * stride)];
    x = scale * std::nearbyint(x / scale);
  }
}

/// The weight rounded to 4 bits in groups of 32 inputs, and the rows to 8 bits.
reference::Tensors rounded_by_hand(reference::Tensors tensors, bool transposed) {
  RefTensor &w = tensors.at("w"), &x = tensors.at("x");
  for (int64_t output = 0; output < kOutputs; ++output)
    for (int64_t first = 0; first < kInputs; first += 32)
      transposed ? round_stretch(w, output * kInputs + first, 1, 32, 7)
                 : round_stretch(w, first * kOutputs + output, kOutputs, 32, 7);
  for (int64_t row = 0; row < kRowsOfProduct; ++row)
    round_stretch(x, row * kInputs, 1, kInputs, 127);
  return tensors;
}

void expect_near(const RefTensor& a, const RefTensor& b, double tolerance) {
  ASSERT_EQ(a.data.size(), b.data.size());
  for (size_t i = 0; i < a.data.size(); ++i) ASSERT_NEAR(a.data[i], b.data[i], tolerance) << i;
}

TEST(FakeQuantize, ProductsReadWhatIntegersHoldAndGradientsPass) {
  for (const bool transposed : {true, false}) {
    SCOPED_TRACE(transposed);
    const Graph plain = product_graph(transposed);
    Notes notes;
    const Graph rounding = fake_quantize_products(plain, Quantization{4, 32, true}, &notes);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_NE(notes[0].find("1 product"), std::string::npos) << notes[0];
    const reference::Tensors given = operands(plain), rounded = rounded_by_hand(given, transposed);
    const auto by_pass = reference::evaluate(differentiate(rounding), given);
    const auto by_hand = reference::evaluate(differentiate(plain), rounded);
    expect_near(by_pass.at("y"), by_hand.at("y"), 1e-4);
    // The gradient of the rounded weight is that of the weight.
    expect_near(by_pass.at("grad:w"), by_hand.at("grad:w"), 1e-4);
  }
}

TEST(FakeQuantize, OtherWeightsStay) {
  const Graph plain = product_graph(true);
  const WeightQuantization others{Quantization{8, 0, false},
                                  std::make_shared<ParameterSet>(ParameterSet{"other"})};
  Notes notes;
  const Graph same = fake_quantize_products(plain, others, &notes);
  EXPECT_EQ(same.size(), plain.size());
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("0 products"), std::string::npos) << notes[0];
}

TEST(FakeQuantize, GroupsThatDoNotDivideAreRefused) {
  EXPECT_USER_ERROR(fake_quantize_products(product_graph(true), Quantization{4, 48, false}),
                    "--qat: groups of 48 do not divide the 128 inputs of w");
}

}  // namespace
}  // namespace brrr
