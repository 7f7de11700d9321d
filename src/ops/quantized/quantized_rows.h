#pragma once
// Defines how a product with a quantised weight quantises the rows of its left operand (dynamic
// quantisation, 8 bits, one scale per row).

#include <cmath>
#include <cstdint>
#include <span>

namespace brrr::ops {

/// A row whose largest magnitude is smaller counts as zeros, because the inverse of its scale would
/// overflow.
inline constexpr float kLeastTop = 0x1p-100f;

/// Maximum number of terms of a sum of products of such integers with integers of 8 bits: 127 * 128
/// times as many fit 32 bits.
inline constexpr int64_t kMostQuantizedTerms = 131071;

/// Replaces each number of a row by scale * round(x * (127 / top)), where top is the largest
/// magnitude, scale = top / 127 and halves round to even; in f32. NaN for a row that holds what is
/// not finite.
inline void quantize_row_to_8_bits(std::span<double> row) {
  double most = 0;
  for (const double x : row) most = std::isfinite(x) ? std::fmax(most, std::fabs(x)) : NAN;
  for (const double x : row)
    if (!std::isfinite(x)) most = NAN;
  const auto top = static_cast<float>(most);
  const float inverse = top >= kLeastTop ? 127.0f / top : 0.0f;
  const float scale = top < kLeastTop ? 0.0f : top / 127.0f;
  for (double& x : row)
    x = static_cast<double>(scale) *
        static_cast<double>(std::nearbyint(static_cast<float>(x) * inverse));
}

}  // namespace brrr::ops
