// Attention with masks that hide everything, and logarithms of a softmax of large numbers, in ONNX
// files: what ONNX Runtime computes.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "modules/onnx/onnx_module.h"
#include "runtime/runnable_session.h"
#include "support/onnx_writer.h"

namespace brrr::test {
namespace {

using namespace onnx_file;

std::string masks_model(const std::string& graph) {
  return varint_field(1, 9) + bytes_field(7, graph) + bytes_field(8, opset("", 17)) +
         bytes_field(8, opset("com.microsoft", 1));
}

HostTensor floats_of(const Shape& shape, const std::vector<float>& values) {
  HostTensor t(DType::f32, shape);
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

std::vector<double> result_of(const std::string& bytes, const PortValues& in) {
  RunnableSession session(onnx::open_module(onnx::File::parse(bytes, "masks.onnx")),
                          cpu::cpu_backend());
  const HostTensor y = session.run(in).begin()->second.tensor();
  std::vector<double> list;
  for (int64_t i = 0; i < y.shape.elements(); ++i)
    list.push_back(load_as_double(y.dtype, y.bytes.data(), i));
  return list;
}

// softmax(Where(keep, q k, low)) with NaN -> 0, times v: two queries, of which the second sees
// nothing. Of a finite number the mean of the values is left, of -inf a row of zeros.
TEST(OnnxMasks, ARowThatIsWhollyMaskedIsTheMeanOfTheValues) {
  for (const float low : {-1e4f, -65504.0f, -1e9f, std::numeric_limits<float>::lowest(),
                          -std::numeric_limits<float>::infinity()}) {
    SCOPED_TRACE(low);
    const std::string file = masks_model(
        graph({value("q", kFloat, {1, 2, 2}), value("k", kFloat, {1, 2, 3}),
               value("v", kFloat, {1, 3, 2})},
              {value("y", kFloat, {1, 2, 2})},
              {node("MatMul", {"q", "k"}, {"s"}), node("Where", {"keep", "s", "low"}, {"m"}),
               node("Softmax", {"m"}, {"p"}, {integer("axis", -1)}), node("IsNaN", {"p"}, {"n"}),
               node("Where", {"n", "zero", "p"}, {"g"}), node("MatMul", {"g", "v"}, {"y"})},
              {tensor<uint8_t>("keep", {1, 2, 3}, {1, 0, 1, 0, 0, 0}, kBool),
               floats("low", {}, {low}), floats("zero", {}, {0})}));
    const std::vector<double> y =
        result_of(file, {{"q", floats_of({1, 2, 2}, {1, 0, 0, 1})},
                         {"k", floats_of({1, 2, 3}, {1, 2, 1, 3, 5, 4})},
                         {"v", floats_of({1, 3, 2}, {1, 10, 2, 20, 6, 30})}});
    const bool hides = std::isinf(low);
    const double wanted[] = {3.5, 20, hides ? 0.0 : 3, hides ? 0.0 : 20};
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], wanted[i], 1e-5) << i;
  }
}

TEST(OnnxMasks, LogSoftmaxOfLargeNumbers) {
  for (const float large : {0.0f, 1e8f, -1e8f, 3e38f}) {
    const std::string file =
        masks_model(graph({value("x", kFloat, {2, 2})}, {value("y", kFloat, {2, 2})},
                          {node("LogSoftmax", {"x"}, {"y"}, {integer("axis", -1)})}, {}));
    const std::vector<double> y = result_of(file, {{"x", floats_of({2, 2}, {large, large, 0, 3})}});
    const double wanted[] = {-std::log(2.0), -std::log(2.0), -std::log1p(std::exp(3.0)),
                             3 - std::log1p(std::exp(3.0))};
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], wanted[i], 1e-6) << large << " " << i;
  }
}

// Where an infinite number is the largest, what is left of the difference is as it was.
TEST(OnnxMasks, LogSoftmaxOfInfiniteNumbers) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const std::string file =
      masks_model(graph({value("x", kFloat, {2, 2})}, {value("y", kFloat, {2, 2})},
                        {node("LogSoftmax", {"x"}, {"y"}, {integer("axis", -1)})}, {}));
  const std::vector<double> y =
      result_of(file, {{"x", floats_of({2, 2}, {-kInfinite, 1, -kInfinite, -kInfinite})}});
  EXPECT_EQ(y[0], -INFINITY);
  EXPECT_EQ(y[1], 0);
  EXPECT_TRUE(std::isnan(y[2]) && std::isnan(y[3]));
}

TEST(OnnxMasks, CausalAttentionOfMoreKeysThanQueriesIsRefused) {
  for (const int64_t keys : {3, 4, 5}) {
    const std::string file = masks_model(
        graph({value("q", kFloat, {1, 4, 8}), value("k", kFloat, {1, keys, 8}),
               value("v", kFloat, {1, keys, 8})},
              {value("y", kFloat, {1, 4, 8})},
              {node("MultiHeadAttention", {"q", "k", "v"}, {"y"},
                    {integer("num_heads", 2), integer("unidirectional", 1)}, "com.microsoft")},
              {}));
    const PortValues in = {
        {"q", floats_of({1, 4, 8}, std::vector<float>(32, 1))},
        {"k", floats_of({1, keys, 8}, std::vector<float>(static_cast<size_t>(keys) * 8, 1))},
        {"v", floats_of({1, keys, 8}, std::vector<float>(static_cast<size_t>(keys) * 8, 1))}};
    if (keys == 4) {
      EXPECT_NEAR(result_of(file, in)[0], 1, 1e-6);
      continue;
    }
    try {
      result_of(file, in);
      ADD_FAILURE() << "it ran with " << keys << " keys";
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find(
                    fmt::format("unidirectional with 4 queries and {} keys", keys)),
                std::string::npos)
          << e.what();
    }
  }
}

}  // namespace
}  // namespace brrr::test
