// Convolutions with packed weights by AMX tiles: two tiles of 16 windows by two of 16 columns. A
// window's terms are read where they lie in the padded buffer, and panels are right tiles as they
// lie.

#include <algorithm>

#include "backend/cpu/products/amx_tiles.h"
#include "backend/cpu/spatial/packed_tiles.h"
#include "base/errors.h"
#include "base/panels.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kTileWindows = 2 * kTileRows;
constexpr int64_t kTileSumsLd = kPanelColumns;

/// How a right tile of a panel lies: rows `stride` bytes apart, the second half of the columns
/// `half` bytes behind the first.
struct RightTiles {
  int64_t stride, half;
};
constexpr RightTiles kTilesOfPairs{kTileRowBytes, kPanelHalf * 2};
constexpr RightTiles kTilesOfIntegers{kPanelColumns * 4, kTileRowBytes};
constexpr int64_t kTileBlockOfPanel = 2 * kTileRows * kTileRowBytes;  // bytes

/// Tiles 0 to 3 hold sums, 4 and 5 windows, 6 and 7 columns of the panel.
template <class Tiles, bool kIntegers, bool kTwoTiles>
void sum_windows(Tiles& tiles, const PackedTilesArgs& t, const std::byte* a, float* sums) {
  constexpr RightTiles kRight = kIntegers ? kTilesOfIntegers : kTilesOfPairs;
  constexpr int64_t kTerms = kIntegers ? kTileInt8 : kTileBf16;
  tiles.template zero<0>();
  tiles.template zero<1>();
  tiles.template zero<2>();
  tiles.template zero<3>();
  const std::byte* b = t.b;
  const auto dot = [&]<int kSum, int kA, int kB>() {
    if constexpr (kIntegers)
      tiles.template dot_int8_by_unsigned<kSum, kA, kB>();
    else
      tiles.template dot_bf16<kSum, kA, kB>();
  };
  for (int64_t r = 0; r < t.runs; ++r) {
    const std::byte* from = a + t.a_runs[r];
    for (int64_t k = 0; k < t.run_terms;
         k += kTerms, from += kTileRowBytes, b += kTileBlockOfPanel) {
      tiles.template load<4>(from, t.a_row);
      tiles.template load<6>(b, kRight.stride);
      tiles.template load<7>(b + kRight.half, kRight.stride);
      dot.template operator()<0, 4, 6>();
      dot.template operator()<1, 4, 7>();
      if constexpr (kTwoTiles) {
        tiles.template load<5>(from + kTileRows * t.a_row, t.a_row);
        dot.template operator()<2, 5, 6>();
        dot.template operator()<3, 5, 7>();
      }
    }
  }
  constexpr int64_t kRow = kTileSumsLd * int64_t{sizeof(float)};
  tiles.template store<0>(sums, kRow);
  tiles.template store<1>(sums + 16, kRow);
  if constexpr (kTwoTiles) {
    tiles.template store<2>(sums + kTileRows * kTileSumsLd, kRow);
    tiles.template store<3>(sums + kTileRows * kTileSumsLd + 16, kRow);
  }
}

/// Adds modulo 2^32: sums of unsigned integers may exceed int32 before the offset is taken off.
void add_window_start(int32_t start, float* sums) {
  auto* words = reinterpret_cast<uint32_t*>(sums);
  for (int64_t j = 0; j < kPanelColumns; ++j) words[j] += static_cast<uint32_t>(start);
}

template <class Tiles, bool kIntegers>
void multiply_by_tiles(const PackedTilesArgs& t) {
  if (t.rows == 0) return;
  // Lines that lie whole windows apart are one long line, of which the windows between are dropped,
  // where that takes fewer tiles.
  const auto tiles_of = [](int64_t windows) { return (windows + kTileRows - 1) / kTileRows; };
  const int64_t pitch = t.a_line / t.a_row;
  const bool is_flat = t.a_line % t.a_row == 0 && pitch >= t.rows &&
                       tiles_of((t.lines - 1) * pitch + t.rows) < t.lines * tiles_of(t.rows);
  const int64_t lines = is_flat ? 1 : t.lines,
                windows = is_flat ? (t.lines - 1) * pitch + t.rows : t.rows;
  alignas(64) float sums[kTileWindows * kTileSumsLd];
  Tiles tiles;
  for (int64_t line = 0; line < lines; ++line)
    for (int64_t first = 0; first < windows; first += kTileWindows) {
      const std::byte* const a = t.a + line * t.a_line + first * t.a_row;
      const int64_t last = std::min(windows, first + kTileWindows);
      if (last - first > kTileRows)
        sum_windows<Tiles, kIntegers, true>(tiles, t, a, sums);
      else
        sum_windows<Tiles, kIntegers, false>(tiles, t, a, sums);
      for (int64_t w = first; w < last;) {
        const int64_t of_line = is_flat ? w / pitch : line, row = is_flat ? w % pitch : w;
        const int64_t end = std::min(last, w - row + t.rows);
        float* const from = sums + (w - first) * kTileSumsLd;
        if constexpr (kIntegers)
          for (int64_t i = 0; i < end - w; ++i)
            add_window_start(t.starts[of_line * t.rows + row + i], from + i * kTileSumsLd);
        if (end > w) packed_tiles().finish(kIntegers, t, from, kTileSumsLd, of_line, row, end - w);
        w = is_flat ? (of_line + 1) * pitch : last;
        if (end == last) break;
      }
    }
}

}  // namespace

void multiply_packed_terms(PackedTerms terms, const PackedTilesArgs& t) {
  switch (terms) {
#if defined(__x86_64__)
    case PackedTerms::bf16_tiles:
      return multiply_by_tiles<AmxTiles, false>(t);
    case PackedTerms::integer_tiles:
      return multiply_by_tiles<AmxTiles, true>(t);
#else
    case PackedTerms::bf16_tiles:
    case PackedTerms::integer_tiles:
      BRRR_CHECK(false, "no AMX on this processor");
      return;
#endif
    case PackedTerms::emulated_bf16_tiles:
      return multiply_by_tiles<EmulatedTiles, false>(t);
    case PackedTerms::emulated_integer_tiles:
      return multiply_by_tiles<EmulatedTiles, true>(t);
    default:
      return packed_tiles().multiply(terms, t);
  }
}

}  // namespace brrr::cpu
