// Integers of 2 and 4 bits in ONNX files, beside what ONNX's own suite covers: weights in blocks,
// as quantised language models have them, and what keeps the range of such integers.

#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "modules/onnx/onnx_module.h"
#include "runtime/runnable_session.h"
#include "support/onnx_writer.h"

namespace brrr::test {
namespace {

using namespace onnx_file;
using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

constexpr int kUint8 = 2, kInt8 = 3, kInt32 = 6, kUint4 = 21, kInt4 = 22, kUint2 = 25;

/// 24 has integers of 4 bits, blocks and BitCast's neighbours.
std::string new_model(const std::string& graph) {
  return varint_field(1, 11) + bytes_field(7, graph) + bytes_field(8, opset("", 24)) +
         bytes_field(8, opset("com.microsoft", 1));
}

HostTensor f32(const Shape& shape, const Floats& values) {
  HostTensor t(DType::f32, shape);
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

/// The only output for the input "x".
HostTensor run(const std::string& bytes, const HostTensor& x) {
  RunnableSession session(onnx::open_module(onnx::File::parse(bytes, "narrow.onnx")),
                          cpu::cpu_backend());
  return session.run({{"x", x}}).begin()->second.tensor();
}

std::vector<double> numbers(const HostTensor& t) {
  std::vector<double> list;
  for (int64_t i = 0; i < t.shape.elements(); ++i)
    list.push_back(load_as_double(t.dtype, t.bytes.data(), i));
  return list;
}

/// Numbers of `bits` bits, the first in the low bits.
Bytes packed(const std::vector<int>& values, int bits) {
  const size_t each = static_cast<size_t>(8 / bits);
  Bytes bytes((values.size() + each - 1) / each);
  for (size_t i = 0; i < values.size(); ++i)
    bytes[i / each] |= static_cast<uint8_t>((values[i] & ((1 << bits) - 1))
                                            << (static_cast<int>(i % each) * bits));
  return bytes;
}

TEST(OnnxNarrow, WeightsInBlocksAreDequantised) {
  // [64, 9] in blocks of 16 rows: more elements than a literal has, and an odd row.
  constexpr int kRows = 64, kColumns = 9, kBlock = 16;
  std::vector<int> weight, zero;
  Floats scale;
  for (int i = 0; i < kRows * kColumns; ++i) weight.push_back(i * 7 % 16 - 8);
  for (int i = 0; i < kRows / kBlock * kColumns; ++i) {
    zero.push_back(i * 5 % 16 - 8);
    scale.push_back(0.25f * static_cast<float>(i % 3 + 1));
  }
  const std::string file =
      new_model(graph({value("x", kFloat, {1, kRows})}, {value("y", kFloat, {1, kColumns})},
                      {node("DequantizeLinear", {"w", "scale", "zero"}, {"wide"},
                            {integer("axis", 0), integer("block_size", kBlock)}),
                       node("MatMul", {"x", "wide"}, {"y"})},
                      {tensor("w", {kRows, kColumns}, packed(weight, 4), kInt4),
                       tensor("zero", {kRows / kBlock, kColumns}, packed(zero, 4), kInt4),
                       floats("scale", {kRows / kBlock, kColumns}, scale)}));
  Floats x;
  for (int i = 0; i < kRows; ++i) x.push_back(static_cast<float>(i % 5 - 2));
  std::vector<double> wanted(kColumns);
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kColumns; ++c) {
      const auto at = static_cast<size_t>(r / kBlock * kColumns + c);
      wanted[static_cast<size_t>(c)] += static_cast<double>(x[static_cast<size_t>(r)]) *
                                        (weight[static_cast<size_t>(r * kColumns + c)] - zero[at]) *
                                        static_cast<double>(scale[at]);
    }
  EXPECT_EQ(numbers(run(file, f32({1, kRows}, x))), wanted);
}

TEST(OnnxNarrow, AResultKeepsTheRangeOfItsZeroPoint) {
  // The zero point is moved by an operator first; the result says nothing of its type.
  const auto quantise = [](int type, const std::vector<int>& zero) {
    return new_model(graph(
        {value("x", kFloat, {4})}, {value("y", type, {4})},
        {node("Squeeze", {"zero"}, {"z"}), node("QuantizeLinear", {"x", "scale", "z"}, {"y"})},
        {tensor("zero", {1}, packed(zero, type == kUint2 ? 2 : 4), type),
         floats("scale", {}, {0.5f})}));
  };
  const HostTensor x = f32({4}, {-100, -0.6f, 1.2f, 100});
  EXPECT_EQ(numbers(run(quantise(kInt4, {1}), x)), (std::vector<double>{-8, 0, 3, 7}));
  EXPECT_EQ(numbers(run(quantise(kUint4, {3}), x)), (std::vector<double>{0, 2, 5, 15}));
  EXPECT_EQ(numbers(run(quantise(kUint2, {1}), x)), (std::vector<double>{0, 0, 3, 3}));
}

TEST(OnnxNarrow, TheWidthEndsWhereACastEndsIt) {
  // To 4 bits and on to 8, whose zero point saturates at 127 and not at 7.
  const std::string file =
      new_model(graph({value("x", kFloat, {2})}, {value("y", kInt8, {2})},
                      {node("Cast", {"zero"}, {"z"}, {integer("to", kInt8)}),
                       node("QuantizeLinear", {"x", "one", "z"}, {"y"})},
                      {tensor("zero", {}, packed({-1}, 4), kInt4), floats("one", {}, {1})}));
  EXPECT_EQ(numbers(run(file, f32({2}, {50, 500}))), (std::vector<double>{49, 127}));
}

TEST(OnnxNarrow, BitsOfPackedIntegersAreRefused) {
  const std::string file =
      new_model(graph({value("x", kFloat, {1})}, {value("y", kUint8, {2})},
                      {node("Cast", {"x"}, {"n"}, {integer("to", kInt4)}),
                       node("BitCast", {"n"}, {"y"}, {integer("to", kUint8)})}));
  try {
    run(file, f32({1}, {3}));
    FAIL() << "it ran";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("the bits of INT4"), std::string::npos) << e.what();
  }
}

/// MatMulNBits whose columns take the blocks that g_idx names.
std::string ordered_product(const std::vector<int>& weight, const std::vector<int>& zero,
                            const Floats& scale, const std::vector<int32_t>& order) {
  return new_model(graph(
      {value("x", kFloat, {1, 32})}, {value("y", kFloat, {1, 3})},
      {node("MatMulNBits", {"x", "w", "scale", zero.empty() ? "" : "zero", "order"}, {"y"},
            {integer("K", 32), integer("N", 3), integer("bits", 4), integer("block_size", 16)},
            "com.microsoft")},
      {tensor("w", {3, 2, 8}, packed(weight, 4), kUint8), floats("scale", {6}, scale),
       tensor("zero", {3}, packed(zero.empty() ? std::vector<int>(6) : zero, 4), kUint8),
       tensor("order", {32}, order, kInt32)}));
}

TEST(OnnxNarrow, ColumnsTakeTheBlockOfTheirGroup) {
  std::vector<int> weight;
  for (int i = 0; i < 96; ++i) weight.push_back(i * 5 % 16);
  const Floats scale{1, 2, 3, 4, 0.5f, 0.25f};
  std::vector<int32_t> order;
  Floats x;
  for (int k = 0; k < 32; ++k) {
    order.push_back(k * k % 3 % 2);
    x.push_back(static_cast<float>(k % 7 - 3));
  }
  for (const std::vector<int>& zero : {std::vector<int>{}, std::vector<int>{1, 2, 3, 4, 15, 0}}) {
    std::vector<double> wanted;
    for (size_t n = 0; n < 3; ++n) {
      double sum = 0;
      for (size_t k = 0; k < 32; ++k) {
        const size_t block = n * 2 + static_cast<size_t>(order[k]);
        sum += static_cast<double>(x[k]) * (weight[n * 32 + k] - (zero.empty() ? 8 : zero[block])) *
               static_cast<double>(scale[block]);
      }
      wanted.push_back(sum);
    }
    EXPECT_EQ(numbers(run(ordered_product(weight, zero, scale, order), f32({1, 32}, x))), wanted);
  }
  order[5] = 2;
  try {
    run(ordered_product(weight, {}, scale, order), f32({1, 32}, x));
    FAIL() << "it ran";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("g_idx names block 2 of 2"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace brrr::test
