#include "base/blocks/four_bit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace brrr::blocks {
namespace {

constexpr size_t kCodes = 16;
using Table = std::array<float, kCodes>;

constexpr Table kNf4 = {-1.0F,
                        -0.6961928009986877F,
                        -0.5250730514526367F,
                        -0.39491748809814453F,
                        -0.28444138169288635F,
                        -0.18477343022823334F,
                        -0.09105003625154495F,
                        0.0F,
                        0.07958029955625534F,
                        0.16093020141124725F,
                        0.24611230194568634F,
                        0.33791524171829224F,
                        0.44070982933044434F,
                        0.5626170039176941F,
                        0.7229568362236023F,
                        1.0F};

/// Sign, two exponent bits and one mantissa bit, divided by the largest value, 12.
constexpr Table kFp4 = {
    0.0F, 0.0625F / 12,  8.0F / 12,  12.0F / 12,  4.0F / 12,  6.0F / 12,  2.0F / 12,  3.0F / 12,
    0.0F, -0.0625F / 12, -8.0F / 12, -12.0F / 12, -4.0F / 12, -6.0F / 12, -2.0F / 12, -3.0F / 12};
/// Codes of the non-negative values, in ascending order.
constexpr std::array<uint8_t, kCodes / 2> kFp4Order = {0, 1, 6, 7, 4, 5, 2, 3};
constexpr unsigned kFp4Sign = 8, kNf4Zero = 7;

constexpr float middle(float a, float b) {
  return static_cast<float>((static_cast<double>(a) + static_cast<double>(b)) / 2);
}

/// Midpoints of neighbouring table entries. The number of midpoints below a value is the index of
/// its nearest entry.
constexpr auto kNf4Limits = [] {
  std::array<float, kCodes - 1> limits{};
  for (size_t i = 0; i < limits.size(); ++i) limits[i] = middle(kNf4[i], kNf4[i + 1]);
  return limits;
}();
constexpr auto kFp4Limits = [] {
  std::array<float, kFp4Order.size() - 1> limits{};
  for (size_t i = 0; i < limits.size(); ++i)
    limits[i] = middle(kFp4[kFp4Order[i]], kFp4[kFp4Order[i + 1]]);
  return limits;
}();

unsigned nf4_code(float share) {
  unsigned code = 0;
  for (const float limit : kNf4Limits) code += share > limit ? 1U : 0U;
  return code;
}

unsigned fp4_code(float share) {
  size_t place = 0;
  for (const float limit : kFp4Limits) place += std::fabs(share) > limit ? 1U : 0U;
  return kFp4Order[place] | (share < 0 ? kFp4Sign : 0U);
}

void dequantise(const Table& table, const std::byte* blocks, int64_t count, float* out) {
  for (int64_t block = 0; block < count; ++block, blocks += kFourBitBytes, out += kFourBitValues) {
    float scale;
    std::memcpy(&scale, blocks, sizeof(scale));
    Table scaled;
    for (size_t i = 0; i < kCodes; ++i) scaled[i] = table[i] * scale;
    const std::byte* const codes = blocks + sizeof(scale);
    for (int64_t i = 0; i < kFourBitValues / 2; ++i) {
      const auto pair = static_cast<unsigned>(codes[i]);
      out[2 * i] = scaled[pair >> 4];
      out[2 * i + 1] = scaled[pair & 15U];
    }
  }
}

float magnitude_of_block(const float* values) {
  float most = 0;
  bool is_finite = true;
  for (int64_t i = 0; i < kFourBitValues; ++i) {
    most = std::max(most, std::fabs(values[i]));
    is_finite &= std::isfinite(values[i]);
  }
  return is_finite ? most : std::numeric_limits<float>::quiet_NaN();
}

template <typename Encode>
void quantise(Encode code_of, unsigned zero, const float* values, int64_t count, std::byte* out) {
  for (int64_t block = 0; block < count; ++block, values += kFourBitValues, out += kFourBitBytes) {
    const float scale = magnitude_of_block(values);
    std::memcpy(out, &scale, sizeof(scale));
    const auto code = [&](float x) { return scale > 0 ? code_of(x / scale) : zero; };
    for (int64_t i = 0; i < kFourBitValues / 2; ++i)
      out[static_cast<int64_t>(sizeof(scale)) + i] =
          static_cast<std::byte>(code(values[2 * i]) << 4 | code(values[2 * i + 1]));
  }
}

}  // namespace

std::span<const float, 16> nf4_values() { return kNf4; }
std::span<const float, 16> fp4_values() { return kFp4; }

void dequantise_nf4(const std::byte* blocks, int64_t count, float* out) {
  dequantise(kNf4, blocks, count, out);
}
void dequantise_fp4(const std::byte* blocks, int64_t count, float* out) {
  dequantise(kFp4, blocks, count, out);
}
void quantise_nf4(const float* values, int64_t count, std::byte* out) {
  quantise(nf4_code, kNf4Zero, values, count, out);
}
void quantise_fp4(const float* values, int64_t count, std::byte* out) {
  quantise(fp4_code, 0, values, count, out);
}

}  // namespace brrr::blocks
