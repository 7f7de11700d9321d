// Products with integer weights of ONNX files that are large enough to be read in panels: against
// sums in double, and what is wrong with a file.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "modules/onnx/onnx_module.h"
#include "runtime/runnable_session.h"
#include "support/onnx_writer.h"

namespace brrr::test {
namespace {

using namespace onnx_file;

constexpr int kU8 = 2, kI8 = 3;
constexpr int64_t kM = 3, kK = 160, kN = 130;

std::string integer_model(const std::string& graph) {
  return varint_field(1, 11) + bytes_field(7, graph) + bytes_field(8, opset("", 21)) +
         bytes_field(8, opset("com.microsoft", 1));
}

/// Some number of [0, count) for the element i.
int some(int64_t i, int count) {
  return static_cast<int>((static_cast<uint64_t>(i) * 2654435761u >> 7) %
                          static_cast<uint64_t>(count));
}
float left(int64_t m, int64_t k) { return static_cast<float>(some(m * kK + k, 201) - 100) / 64; }
float scale_at(int64_t i) { return static_cast<float>(1 + some(i, 50)) / 512; }

HostTensor run_integers(const std::string& bytes) {
  std::vector<float> x;
  for (int64_t m = 0; m < kM; ++m)
    for (int64_t k = 0; k < kK; ++k) x.push_back(left(m, k));
  HostTensor t(DType::f32, {kM, kK});
  std::memcpy(t.bytes.data(), x.data(), t.bytes.size());
  RunnableSession session(onnx::open_module(onnx::File::parse(bytes, "integers.onnx")),
                          cpu::cpu_backend());
  return session.run({{"x", t}}).begin()->second.tensor();
}

/// Compares a run with the product of x and weight(k, n).
void expect_product(const std::string& bytes,
                    const std::function<double(int64_t, int64_t)>& weight) {
  const HostTensor y = run_integers(bytes);
  ASSERT_EQ(y.shape, (Shape{kM, kN}));
  for (int64_t m = 0; m < kM; ++m)
    for (int64_t n = 0; n < kN; ++n) {
      double sum = 0, terms = 0;
      for (int64_t k = 0; k < kK; ++k) {
        const double term = static_cast<double>(left(m, k)) * weight(k, n);
        sum += term;
        terms += std::fabs(term);
      }
      ASSERT_NEAR(y.number(m * kN + n), sum, 1e-6 * terms + 1e-6) << m << ", " << n;
    }
}

std::vector<uint8_t> some_bytes(int64_t count) {
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(some(i, 256)));
  return bytes;
}
std::vector<float> some_scales(int64_t count) {
  std::vector<float> scales;
  for (int64_t i = 0; i < count; ++i) scales.push_back(scale_at(i));
  return scales;
}

std::string n_bits(int64_t bits, int64_t block, bool has_zeros, int64_t scales) {
  const int64_t blocks = (kK + block - 1) / block;
  std::vector<std::string> weights{
      tensor("w", {kN, blocks, block * bits / 8}, some_bytes(kN * blocks * block * bits / 8), kU8),
      floats("s", {scales}, some_scales(scales))};
  std::vector<std::string> operands{"x", "w", "s"};
  if (has_zeros) {
    const int64_t bytes = kN * ((blocks * bits + 7) / 8);
    weights.push_back(tensor("z", {bytes}, some_bytes(bytes), kU8));
    operands.push_back("z");
  }
  return integer_model(graph({value("x", kFloat, {kM, kK})}, {value("y", kFloat, {kM, kN})},
                             {onnx_file::node("MatMulNBits", operands, {"y"},
                                              {integer("K", kK), integer("N", kN),
                                               integer("bits", bits), integer("block_size", block)},
                                              "com.microsoft")},
                             weights));
}

TEST(OnnxIntegerWeights, MatMulNBits) {
  struct Form {
    int bits, block;
    bool has_zeros;
  };
  for (const Form& form : {Form{4, 16, false},
                           {4, 32, false},
                           {4, 128, false},
                           {4, 32, true},
                           {8, 32, false},
                           {8, 32, true},
                           {2, 32, false}}) {
    const int bits = form.bits, block = form.block;
    const bool has_zeros = form.has_zeros;
    SCOPED_TRACE(fmt::format("{} bits, blocks of {}{}", bits, block, has_zeros ? ", zeros" : ""));
    const int64_t blocks = (kK + block - 1) / block, per_byte = 8 / bits;
    const auto number_at = [&](int64_t i) {
      return some(i / per_byte, 256) >> (i % per_byte * bits) & ((1 << bits) - 1);
    };
    const int64_t zero_row = (blocks * bits + 7) / 8 * per_byte;
    expect_product(n_bits(bits, block, has_zeros, kN * blocks), [&](int64_t k, int64_t n) {
      const int64_t at = k / block;
      const int zero = has_zeros ? number_at(n * zero_row + at) : 1 << (bits - 1);
      return static_cast<double>(scale_at(n * blocks + at)) *
             (number_at(n * blocks * block + k) - zero);
    });
  }
}

/// MatMul of x and a dequantised weight [K, N].
std::string dequantized(int type, const std::vector<int64_t>& scales,
                        const std::vector<float>& scale, std::optional<int> zero,
                        const std::vector<std::string>& attributes) {
  int64_t count = 1;
  for (const int64_t size : scales) count *= size;
  std::vector<std::string> operands{"w", "s"},
      weights{tensor("w", {kK, kN}, some_bytes(kK * kN), type), floats("s", scales, scale)};
  if (zero) {
    weights.push_back(tensor(
        "z", scales, std::vector<uint8_t>(static_cast<size_t>(count), static_cast<uint8_t>(*zero)),
        type));
    operands.push_back("z");
  }
  return integer_model(graph({value("x", kFloat, {kM, kK})}, {value("y", kFloat, {kM, kN})},
                             {onnx_file::node("DequantizeLinear", operands, {"f"}, attributes),
                              onnx_file::node("MatMul", {"x", "f"}, {"y"})},
                             weights));
}

TEST(OnnxIntegerWeights, DequantizeLinear) {
  struct Case {
    int type;
    std::vector<int64_t> scales;
    std::optional<int> zero;
    int64_t axis, block;
  };
  const Case cases[] = {{kI8, {kN}, std::nullopt, 1, 0},
                        {kI8, {kN}, 0, 1, 0},
                        {kU8, {}, 128, 1, 0},
                        {kU8, {}, 117, 1, 0},
                        {kU8, {kN}, 128, 1, 0},
                        {kI8, {kK}, std::nullopt, 0, 0},
                        {kI8, {kK / 32, kN}, std::nullopt, 0, 32},
                        {kI8, {kK, kN / 10}, std::nullopt, 1, 10},
                        {kI8, {2, kN}, std::nullopt, 0, 128}};
  for (const Case& c : cases) {
    int64_t count = 1;
    for (const int64_t size : c.scales) count *= size;
    std::vector<std::string> attributes{integer("axis", c.axis)};
    if (c.block > 0) attributes.push_back(integer("block_size", c.block));
    SCOPED_TRACE(
        fmt::format("type {}, {} scales, axis {}, blocks of {}", c.type, count, c.axis, c.block));
    expect_product(dequantized(c.type, c.scales, some_scales(count), c.zero, attributes),
                   [&](int64_t k, int64_t n) {
                     const int byte = some(k * kN + n, 256);
                     const int number = c.type == kI8 && byte > 127 ? byte - 256 : byte;
                     int64_t scale = 0;
                     if (c.scales.size() == 1) scale = c.axis == 0 ? k : n;
                     if (c.scales.size() == 2) {
                       scale =
                           c.axis == 0 ? k / c.block * kN + n : k * (kN / c.block) + n / c.block;
                     }
                     return static_cast<double>(scale_at(scale)) * (number - c.zero.value_or(0));
                   });
  }
}

TEST(OnnxIntegerWeights, AScaleThatIsNoNumberMakesItsColumnNaN) {
  std::vector<float> scales = some_scales(kN);
  scales[7] = NAN;
  const HostTensor y =
      run_integers(dequantized(kI8, {kN}, scales, std::nullopt, {integer("axis", 1)}));
  for (int64_t i = 0; i < kM * kN; ++i) EXPECT_EQ(std::isnan(y.number(i)), i % kN == 7) << i;
}

TEST(OnnxIntegerWeights, WhatDoesNotFitIsRefused) {
  const auto message = [](const std::string& bytes) -> std::string {
    try {
      run_integers(bytes);
    } catch (const UserError& e) {
      return e.what();
    }
    return "it ran";
  };
  EXPECT_NE(message(dequantized(kI8, {33}, some_scales(33), std::nullopt, {integer("axis", 1)}))
                .find("the scale [33] does not fit axis 1"),
            std::string::npos);
  EXPECT_NE(message(dequantized(kI8, {4, kN}, some_scales(4 * kN), std::nullopt,
                                {integer("axis", 0), integer("block_size", 32)}))
                .find("does not fit blocks of 32 along axis 0"),
            std::string::npos);
  EXPECT_NE(message(n_bits(4, 32, false, 7)), "it ran");
}

/// x is quantised to u8 and multiplied by bytes with a zero point for each column: exact.
TEST(OnnxIntegerWeights, ExactProductsWithZeroPoints) {
  for (const int type : {kU8, kI8}) {
    const std::string bytes = integer_model(
        graph({value("x", kFloat, {kM, kK})}, {value("y", kFloat, {kM, kN})},
              {onnx_file::node("QuantizeLinear", {"x", "one", "za"}, {"q"}),
               onnx_file::node("MatMulInteger", {"q", "w", "za", "zb"}, {"i"}),
               onnx_file::node("Cast", {"i"}, {"y"}, {integer("to", kFloat)})},
              {floats("one", {}, {0.0625f}), tensor("za", {}, std::vector<uint8_t>{100}, kU8),
               tensor("w", {kK, kN}, some_bytes(kK * kN), type),
               tensor("zb", {kN}, some_bytes(kN), type)}));
    const HostTensor y = run_integers(bytes);
    const auto number = [&](int64_t i) {
      const int byte = some(i, 256);
      return type == kI8 && byte > 127 ? byte - 256 : byte;
    };
    for (int64_t m = 0; m < kM; ++m)
      for (int64_t n = 0; n < kN; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < kK; ++k)
          sum += std::nearbyint(static_cast<double>(left(m, k)) * 16) *
                 (number(k * kN + n) - number(n));
        EXPECT_EQ(y.number(m * kN + n), sum) << m << ", " << n;
      }
  }
}

}  // namespace
}  // namespace brrr::test
