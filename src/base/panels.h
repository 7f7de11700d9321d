#pragma once
// The order in which a right operand that many products read lies best for units that multiply
// tiles of 16-bit numbers: panels of 32 columns, in each 32 terms after 32 terms, of these two
// halves of 16 columns, in a half 16 pairs of terms. As a tensor [N / 32, K / 32, 2, 16, 16, 2],
// both rounded up; what the panels have more than N columns and K terms are zeros. Whoever reads a
// column from end to end reads memory from end to end.
// Panels of f32, which is multiplied a term at a time, hold 32 columns term after term: they are a
// tensor [N / 32, K, 32] in which only the columns are rounded up.

#include <cstdint>

#include "base/integers.h"

namespace brrr {

inline constexpr int64_t kPanelColumns = 32, kPanelTerms = 32;
/// Numbers of 16 columns: of 32 terms, and of a pair of them.
inline constexpr int64_t kPanelHalf = 512, kPanelPair = 32;

/// The numbers in the panels of a matrix [k, n], zeros included.
inline int64_t panel_elements(int64_t k, int64_t n) {
  return ceil_div(n, kPanelColumns) * ceil_div(k, kPanelTerms) * 2 * kPanelHalf;
}
/// Where element (k, n) of a matrix of `terms` rows lies.
inline int64_t place_in_panels(int64_t k, int64_t n, int64_t terms) {
  const int64_t tile = (n / 32 * ceil_div(terms, 32) + k / 32) * 2 + n % 32 / 16;
  return ((tile * 16 + k % 32 / 2) * 16 + n % 16) * 2 + k % 2;
}

/// The same for panels of f32.
inline int64_t f32_panel_elements(int64_t k, int64_t n) { return round_up(n, kPanelColumns) * k; }
inline int64_t place_in_f32_panels(int64_t k, int64_t n, int64_t terms) {
  return (n / kPanelColumns * terms + k) * kPanelColumns + n % kPanelColumns;
}

}  // namespace brrr
