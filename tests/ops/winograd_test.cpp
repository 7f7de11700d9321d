// Winograd's algorithm in double is the convolution, and what it does not fit is refused.

#include "ops/spatial/winograd.h"

#include <gtest/gtest.h>

#include "backend/reference/interpreter.h"
#include "ops/ops.h"
#include "ops/spatial/conv.h"
#include "passes/passes.h"
#include "support/tensors.h"

namespace brrr {
namespace {

TEST(Winograd, IsTheConvolution) {
  for (const int64_t tile : {2, 4})
    for (const std::vector<int64_t>& pads :
         {std::vector<int64_t>{1, 1, 1, 1}, {0, 0, 0, 0}, {2, 0, 1, 3}}) {
      const Windows windows{{1, 1}, {1, 1}, pads, true};
      Graph g;
      const Value x = g.input("x", {2, 7, 6, 3}, DType::f64),
                  w = g.input("w", {4, 3, 3, 3}, DType::f64), b = g.input("b", {4}, DType::f32);
      g.output("plain", conv(x, w, b, windows, 1));
      g.output("winograd",
               conv_by_matrix(x, winograd_weight(w, tile), {3, 3}, b, windows, 1, tile));
      reference::Tensors out = reference::evaluate(g, test::random_inputs(g, 5, -1, 1, 3));
      const RefTensor &plain = out.at("plain"), &fast = out.at("winograd");
      ASSERT_EQ(plain.type, fast.type);
      for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(plain.data[i], fast.data[i], 1e-13);
    }
}

/// The message that conv_by_matrix() fails with.
std::string refusal(std::vector<int64_t> kernel, int64_t stride, int64_t groups, int64_t tile,
                    int64_t terms, DType dtype = DType::f32) {
  Graph g;
  const Value x = g.input("x", {1, 8, 8, 4}, dtype), w = g.input("w", {4, terms}, dtype);
  try {
    conv_by_matrix(x, w, std::move(kernel), std::nullopt, {{stride, 1}, {1, 1}, {0, 0, 0, 0}, true},
                   groups, tile);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(Winograd, RefusesOtherConvolutions) {
  EXPECT_EQ(refusal({3, 3}, 1, 1, 4, 144), "");
  EXPECT_EQ(refusal({3, 3}, 1, 1, 2, 64), "");
  for (const std::string& text :
       {refusal({3, 3}, 1, 1, 3, 100), refusal({3, 3}, 2, 1, 4, 144), refusal({3, 3}, 1, 2, 4, 72),
        refusal({3, 1}, 1, 1, 4, 144), refusal({3, 3}, 1, 1, 4, 144, DType::i32)})
    EXPECT_NE(text.find("winograd must be 2 or 4, for floats, a 3 x 3 kernel"), std::string::npos)
        << text;
  Graph plain;
  const std::vector<ValueId> operands{plain.input("x", {1, 8, 8, 4}, DType::f32).id,
                                      plain.input("w", {4, 4, 3, 3}, DType::f32).id};
  Attrs attrs = ops::window_attrs({{1, 1}, {1, 1}, {0, 0, 0, 0}, true},
                                  {{"groups", int64_t{1}}, {"bias", false}});
  plain.add(op(Op::conv), operands, attrs);
  attrs.set("winograd", int64_t{4});
  EXPECT_THROW(plain.add(op(Op::conv), operands, attrs), UserError) << "no {kernel}";
  attrs.set("kernel", std::vector<int64_t>{3, 3});
  attrs.set("winograd", int64_t{0});
  EXPECT_THROW(plain.add(op(Op::conv), operands, attrs), UserError);
  EXPECT_NE(refusal({3, 3}, 1, 1, 4, 36).find("w is [M, 36 4/1]"), std::string::npos);
  Graph g;
  const Value square = g.input("w", {4, 3, 2, 2}, DType::f32),
              kernels = g.input("v", {4, 3, 3, 3}, DType::f32);
  EXPECT_THROW(winograd_weight(square, 4), UserError);
  EXPECT_THROW(winograd_weight(kernels, 3), UserError);
}

TEST(Winograd, HasNoDerivative) {
  Graph g;
  const Value x = g.input("x", {1, 8, 8, 4}, DType::f32), w = g.parameter("w", {4, 144});
  const Value y =
      conv_by_matrix(x, w, {3, 3}, std::nullopt, {{1, 1}, {1, 1}, {1, 1, 1, 1}, true}, 1, 4);
  g.output("loss", sum(y, {0, 1, 2, 3}));
  EXPECT_THROW(differentiate(g), UserError);
}

}  // namespace
}  // namespace brrr
