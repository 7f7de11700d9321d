#pragma once
// The order in which a constant right operand of products lies best for units that multiply tiles
// of 16-bit numbers: panels of 32 columns, in each 32 terms after 32 terms, of these two halves of
// 16 columns, in a half 16 pairs of terms. As a tensor [N / 32, K / 32, 2, 16, 16, 2]. Whoever
// reads a column from end to end reads memory from end to end.

#include <cstdint>

#include "base/shape.h"

namespace brrr {

/// What a state of this order is called: "panels:" and the parameter.
inline constexpr const char* kPanelsPrefix = "panels:";
inline constexpr int64_t kPanelColumns = 32, kPanelTerms = 32;
/// Numbers of 16 columns: of 32 terms, and of a pair of them.
inline constexpr int64_t kPanelHalf = 512, kPanelPair = 32;

/// Of a matrix [k, n]; both are multiples of 32.
inline Shape panels_shape(int64_t k, int64_t n) {
  return {n / kPanelColumns, k / kPanelTerms, 2, 16, 16, 2};
}
/// Where element (k, n) of a matrix of `terms` rows lies.
inline int64_t place_in_panels(int64_t k, int64_t n, int64_t terms) {
  const int64_t tile = (n / 32 * (terms / 32) + k / 32) * 2 + n % 32 / 16;
  return ((tile * 16 + k % 32 / 2) * 16 + n % 16) * 2 + k % 2;
}

}  // namespace brrr
