// Strips of integer products by AMX tiles (TDPBSUD): two tiles of 16 rows by two of 16 columns. A
// panel of 8 bits (base/integer_panels.h) is a column of right tiles as it lies.

#include <algorithm>
#include <cstring>

#include "backend/cpu/products/amx_tiles.h"
#include "backend/cpu/quantized/integer_kernels.h"
#include "base/errors.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kTileStripRows = 2 * kTileRows;
static_assert(kTileStripRows == kMostStripRows);
constexpr int64_t kPanelRow = kPanelColumns * 4;       // bytes of a row of two right tiles
constexpr int64_t kPanelStep = kTileRows * kPanelRow;  // bytes of kTileInt8 terms

/// Adds the products of kTileInt8 terms. Tiles 0 to 3 hold sums, 4 and 5 rows of the left operand,
/// 6 and 7 columns of the panel.
template <bool kTwoTiles, class Tiles>
void add_terms(Tiles& tiles, const int8_t* rows, int64_t ld, const uint8_t* columns) {
  tiles.template load<4>(rows, ld);
  tiles.template load<6>(columns, kPanelRow);
  tiles.template load<7>(columns + kTileRowBytes, kPanelRow);
  tiles.template dot_int8_by_unsigned<0, 4, 6>();
  tiles.template dot_int8_by_unsigned<1, 4, 7>();
  if constexpr (kTwoTiles) {
    tiles.template load<5>(rows + kTileRows * ld, ld);
    tiles.template dot_int8_by_unsigned<2, 5, 6>();
    tiles.template dot_int8_by_unsigned<3, 5, 7>();
  }
}

template <bool kTwoTiles, class Tiles>
void sum_tiles(const IntegerStrip& s, const IntegerPanels& form, int32_t* sums) {
  Tiles tiles;
  tiles.template zero<0>();
  tiles.template zero<1>();
  tiles.template zero<2>();
  tiles.template zero<3>();
  const int64_t whole = form.k / kTileInt8;
  for (int64_t i = 0; i < whole; ++i)
    add_terms<kTwoTiles>(tiles, s.values + i * kTileInt8, s.ld, s.panel + i * kPanelStep);
  if (const int64_t rest = form.panel_bytes() - whole * kPanelStep; rest > 0) {
    alignas(64) uint8_t columns[kPanelStep] = {};  // reading past the last panel is not allowed
    std::memcpy(columns, s.panel + whole * kPanelStep, static_cast<size_t>(rest));
    add_terms<kTwoTiles>(tiles, s.values + whole * kTileInt8, s.ld, columns);
  }
  tiles.template store<0>(sums, kPanelRow);
  tiles.template store<1>(sums + 16, kPanelRow);
  if constexpr (kTwoTiles) {
    tiles.template store<2>(sums + kTileRows * kPanelColumns, kPanelRow);
    tiles.template store<3>(sums + kTileRows * kPanelColumns + 16, kPanelRow);
  }
}

template <class Tiles>
void tile_strip(const IntegerStrip& s, const IntegerPanels& form) {
  if (form.k == 0) return integer_kernels().strip(s, form);
  BRRR_CHECK(form.bits == 8 && form.groups() <= 1 && s.rows <= kTileStripRows,
             "tiles take 8 bits, one group and {} rows", kTileStripRows);
  alignas(64) int32_t sums[kTileStripRows * kPanelColumns];
  if (s.rows > kTileRows)
    sum_tiles<true, Tiles>(s, form, sums);
  else
    sum_tiles<false, Tiles>(s, form, sums);
  for (int64_t r = 0; r < s.rows; ++r) {
    int32_t* row = sums + r * kPanelColumns;
    // Adds modulo 2^32, because a sum of unsigned integers may exceed int32 before the offset is
    // subtracted.
    for (int64_t j = 0; j < kPanelColumns; ++j)
      row[j] = static_cast<int32_t>(static_cast<uint32_t>(row[j]) +
                                    static_cast<uint32_t>(s.row_starts[r]));
    if (s.exact != nullptr) std::copy_n(row, kPanelColumns, s.exact + r * s.out_ld);
  }
  if (s.exact == nullptr) integer_kernels().scale_sums(s, sums);
}

}  // namespace

#if defined(__x86_64__)
StripKernel amx_strips() { return {&tile_strip<AmxTiles>, kTileStripRows}; }
#else
StripKernel amx_strips() {
  BRRR_CHECK(false, "no AMX on this processor");
  return {};
}
#endif
StripKernel emulated_amx_strips() { return {&tile_strip<EmulatedTiles>, kTileStripRows}; }

}  // namespace brrr::cpu
