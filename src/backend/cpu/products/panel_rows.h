#pragma once
// Matrices of 16-bit numbers into panels (base/panels.h), 32 rows at a time.

#include <cstdint>

#include "base/panels.h"

namespace brrr::cpu {

/// Numbers of a panel's 32 terms, which lie side by side.
inline constexpr int64_t kPanelTile = 2 * kPanelHalf;

/// Where 32 rows of a matrix go; null: nowhere.
struct PanelRows {
  uint16_t* panels = nullptr;      // those of the first 32 columns; those of the next are
  int64_t panel = 0;               // ... so many numbers away
  uint16_t* transposed = nullptr;  // one panel of the transpose, from its first term on
  bool past_caches = false;        // write around the caches, where lines allow
};
/// rows: [32, columns], `ld` apart; columns are a multiple of 32.
void put_into_panels(const uint16_t* rows, int64_t ld, int64_t columns, const PanelRows& to);

/// Zeros behind `rows` rows of `columns` numbers, `ld` apart, up to 32 rows and a multiple of 32
/// columns.
void pad_with_zeros(uint16_t* part, int64_t ld, int64_t rows, int64_t columns);

/// Of a matrix [rows, columns] that lies in panels, its transpose, or both: where the part from
/// `row`, a multiple of 32, and `column`, too, goes.
struct PanelPlaces {
  int64_t rows, columns;
  uint16_t *panels, *transposed;  // or null
  bool past_caches;

  PanelRows at(int64_t row, int64_t column) const;
};

/// Panels of the columns [first, first + count) of a matrix of `terms` rows become the panels of
/// their transpose [count, terms], with all threads. `first` and `count` are multiples of 32, and
/// may reach into the padding.
void turn_panels(const uint16_t* panels, int64_t terms, int64_t first, int64_t count, uint16_t* to);

/// Copies larger than this are not in a near cache when a product reads them.
inline constexpr int64_t kNearPanels = int64_t{8} << 20;  // bytes

}  // namespace brrr::cpu
