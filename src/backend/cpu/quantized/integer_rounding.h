#pragma once
// The scale and the rounding with which floats are quantised (base/storage.h), one element at a
// time; quantize_group.h is the vector code for whole groups.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace brrr::cpu {

/// Returns the largest magnitude of `top` and the `count` elements of x, or NaN if one of them is
/// not finite. The bit patterns of magnitudes are ordered like the magnitudes, with infinity and
/// NaN last.
inline float largest_magnitude(const float* x, int64_t count, float top) {
  constexpr uint32_t kInfinite = 0x7f800000;
  uint32_t most = std::bit_cast<uint32_t>(top) & 0x7fffffffu;
  for (int64_t i = 0; i < count; ++i)
    most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return most < kInfinite ? std::bit_cast<float>(most) : std::numeric_limits<float>::quiet_NaN();
}

/// Rounds x / scale to the nearest integer, ties to even, and clamps it to [-most, most]. Returns 0
/// for a scale of 0 or NaN.
inline int nearest_integer(float x, float scale, float most) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
  const float whole = scale > 0 ? x / scale + kRound - kRound : 0.0f;
  return static_cast<int>(std::min(std::max(whole, -most), most));
}

}  // namespace brrr::cpu
