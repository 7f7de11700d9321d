#include "base/blocks/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/blocks/write_half.h"
#include "base/dtype.h"

namespace brrr::blocks {
namespace {

constexpr int64_t kBlockValues = 32;

/// Returns the value of the largest magnitude, with its sign.
float largest_of_block(const float* values) {
  return *std::max_element(values, values + kBlockValues,
                           [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

}  // namespace

void quantise_f32(const float* values, int64_t count, std::byte* out) {
  if (count > 0) std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
}

void quantise_f16(const float* values, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) write_half(values[i], out + 2 * i);
}

void quantise_bf16(const float* values, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = bf16_from_float(values[i]);
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
}

// The scale maps the value of largest magnitude, sign included, to -8.
void quantise_q4_0(const float* values, int64_t count, std::byte* out) {
  constexpr int64_t kBytes = 18;
  for (int64_t block = 0; block < count; ++block, values += kBlockValues, out += kBytes) {
    const float scale = largest_of_block(values) / -8;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    write_half(scale, out);
    const auto nibble = [&](float value) {
      return static_cast<uint8_t>(std::clamp(std::trunc(value * inverse + 8.5f), 0.0f, 15.0f));
    };
    for (int64_t i = 0; i < kBlockValues / 2; ++i)
      out[2 + i] =
          static_cast<std::byte>(nibble(values[i]) | nibble(values[kBlockValues / 2 + i]) << 4);
  }
}

namespace {

/// Writes 32 codes of 5 bits: a 32-bit word of the highest bits, then 16 bytes of the lower four
/// bits, where byte i holds code i in its lower half and code i + 16 in its upper half.
void write_five_bits(const uint8_t* codes, std::byte* out) {
  uint32_t high = 0;
  for (int i = 0; i < kBlockValues; ++i) high |= static_cast<uint32_t>(codes[i] >> 4) << i;
  std::memcpy(out, &high, sizeof(high));
  for (int i = 0; i < kBlockValues / 2; ++i)
    out[sizeof(high) + static_cast<size_t>(i)] =
        static_cast<std::byte>((codes[i] & 15) | (codes[kBlockValues / 2 + i] & 15) << 4);
}

}  // namespace

// The scale maps the value of largest magnitude, sign included, to -16.
void quantise_q5_0(const float* values, int64_t count, std::byte* out) {
  constexpr int64_t kBytes = 22;
  for (int64_t block = 0; block < count; ++block, values += kBlockValues, out += kBytes) {
    const float scale = largest_of_block(values) / -16;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    write_half(scale, out);
    uint8_t codes[kBlockValues];
    for (int64_t i = 0; i < kBlockValues; ++i)
      codes[i] =
          static_cast<uint8_t>(std::clamp(std::trunc(values[i] * inverse + 16.5f), 0.0f, 31.0f));
    write_five_bits(codes, out + 2);
  }
}

// The least value becomes 0, the greatest 31.
void quantise_q5_1(const float* values, int64_t count, std::byte* out) {
  constexpr int64_t kBytes = 24;
  for (int64_t block = 0; block < count; ++block, values += kBlockValues, out += kBytes) {
    const auto [low, high] = std::minmax_element(values, values + kBlockValues);
    const float least = *low, scale = (*high - least) / 31;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    write_half(scale, out);
    write_half(least, out + 2);
    uint8_t codes[kBlockValues];
    for (int64_t i = 0; i < kBlockValues; ++i)
      codes[i] = static_cast<uint8_t>(
          std::clamp(std::trunc((values[i] - least) * inverse + 0.5f), 0.0f, 31.0f));
    write_five_bits(codes, out + 4);
  }
}

// Halves are rounded away from zero.
void quantise_q8_0(const float* values, int64_t count, std::byte* out) {
  constexpr int64_t kBytes = 34;
  for (int64_t block = 0; block < count; ++block, values += kBlockValues, out += kBytes) {
    float largest = 0;
    for (int64_t i = 0; i < kBlockValues; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float scale = largest / 127;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    write_half(scale, out);
    for (int64_t i = 0; i < kBlockValues; ++i)
      out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(values[i] * inverse)));
  }
}

}  // namespace brrr::blocks
