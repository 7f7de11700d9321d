#pragma once
// Attention in bf16 on AMX tiles or by avx512_bf16: products of whole tiles, and the packing that
// they need. The scores, their softmax and all sums stay f32; probabilities and their gradients are
// rounded to bf16 before they are multiplied.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/products/amx_tiles.h"
#include "backend/cpu/products/gemm_amx_kernels.h"
#include "backend/cpu/products/memory_tiles.h"
#include "backend/cpu/products/register_tiles.h"

namespace brrr::cpu {

inline constexpr int64_t kTileElements = int64_t{kTileRows} * kTileBf16;

/// Tiles of an operand: tile (i, k) of 16 rows or columns and 32 terms begins at
/// data + i * step + k * term_step; its rows are `stride` elements apart.
struct TileGrid {
  const uint16_t* data;
  int64_t step, term_step, stride;
};
/// One tile after the other, `terms` tiles for each 16 rows or columns.
inline TileGrid packed_tiles(const uint16_t* data, int64_t terms) {
  return {data, terms * kTileElements, kTileElements, kTileBf16};
}
/// Rows in memory, padded to whole tiles: left operands only.
inline TileGrid tiles_in_rows(const uint16_t* data, int64_t ld) {
  return {data, kTileRows * ld, kTileBf16, ld};
}

/// Whether queries of that width are better read by tiles_in_rows() as they lie.
inline bool rows_are_tiles(const AttentionProblem& p, const HeadRows& queries, int64_t width) {
  return !p.is_ragged() && p.t % kTileRows == 0 && width % kTileBf16 == 0 &&
         !p.in_few_sets(queries);
}

/// c = a b or c += a b for kRows x kCols tiles.
template <int kRows, int kCols, class Tiles>
void tile_block(Tiles& tiles, const TileGrid& a, const TileGrid& b, int64_t row, int64_t col,
                int64_t terms, float* c, int64_t ldc, bool add) {
  const int64_t c_stride = ldc * 4, a_stride = a.stride * 2;
  float* right = c + 16;
  float* down = c + kTileRows * ldc;
  if (add) {
    tiles.template load<0>(c, c_stride);
    if constexpr (kCols == 2) tiles.template load<1>(right, c_stride);
    if constexpr (kRows == 2) tiles.template load<2>(down, c_stride);
    if constexpr (kRows == 2 && kCols == 2) tiles.template load<3>(down + 16, c_stride);
  } else {
    tiles.template zero<0>();
    tiles.template zero<1>();
    tiles.template zero<2>();
    tiles.template zero<3>();
  }
  const uint16_t* from_a = a.data + row * a.step;
  const uint16_t* from_b = b.data + col * b.step;
  for (int64_t k = 0; k < terms; ++k, from_a += a.term_step, from_b += b.term_step) {
    tiles.template load<4>(from_a, a_stride);
    tiles.template load<6>(from_b, kTileRowBytes);
    tiles.template dot_bf16<0, 4, 6>();
    if constexpr (kCols == 2) {
      tiles.template load<7>(from_b + b.step, kTileRowBytes);
      tiles.template dot_bf16<1, 4, 7>();
    }
    if constexpr (kRows == 2) {
      tiles.template load<5>(from_a + a.step, a_stride);
      tiles.template dot_bf16<2, 5, 6>();
    }
    if constexpr (kRows == 2 && kCols == 2) tiles.template dot_bf16<3, 5, 7>();
  }
  tiles.template store<0>(c, c_stride);
  if constexpr (kCols == 2) tiles.template store<1>(right, c_stride);
  if constexpr (kRows == 2) tiles.template store<2>(down, c_stride);
  if constexpr (kRows == 2 && kCols == 2) tiles.template store<3>(down + 16, c_stride);
}

/// tile_product() by tile registers.
template <class Tiles>
void product_by_tiles(Tiles& tiles, const TileGrid& a, const TileGrid& b, int64_t rows,
                      int64_t cols, int64_t terms, float* c, int64_t ldc, bool add) {
  for (int64_t i = 0; i < rows; i += 2)
    for (int64_t j = 0; j < cols; j += 2) {
      float* to = c + i * kTileRows * ldc + j * 16;
      const bool two_rows = i + 1 < rows, two_cols = j + 1 < cols;
      if (two_rows && two_cols)
        tile_block<2, 2>(tiles, a, b, i, j, terms, to, ldc, add);
      else if (two_rows)
        tile_block<2, 1>(tiles, a, b, i, j, terms, to, ldc, add);
      else if (two_cols)
        tile_block<1, 2>(tiles, a, b, i, j, terms, to, ldc, add);
      else
        tile_block<1, 1>(tiles, a, b, i, j, terms, to, ldc, add);
    }
}

/// tile_product() by strips of rows.
template <class Tiles>
void product_by_strips(const TileGrid& a, const TileGrid& b, int64_t rows, int64_t cols,
                       int64_t terms, float* c, int64_t ldc, bool add) {
  const auto bytes = [](const uint16_t* p) { return reinterpret_cast<const uint8_t*>(p); };
  for (int64_t row = 0; row < rows * kTileRows; row += Tiles::kStripRows) {
    const uint16_t* from = a.data + row / kTileRows * a.step + row % kTileRows * a.stride;
    for (int64_t j = 0; j < cols; j += 2) {
      const StripOperands strip{bytes(from),
                                2 * a.stride,
                                2 * a.term_step,
                                bytes(b.data + j * b.step),
                                2 * b.step,
                                2 * b.term_step,
                                terms,
                                c + row * ldc + j * kTileRows,
                                ldc,
                                add};
      (j + 1 < cols ? Tiles::template strip<2> : Tiles::template strip<1>)(strip);
    }
  }
}

/// c [16 rows, 16 cols] = a b, or c += a b, all counts in tiles.
template <class Tiles>
void tile_product(Tiles& tiles, const TileGrid& a, const TileGrid& b, int64_t rows, int64_t cols,
                  int64_t terms, float* c, int64_t ldc, bool add) {
  if constexpr (MultipliesStrips<Tiles>) {
    product_by_strips<Tiles>(a, b, rows, cols, terms, c, ldc, add);
  } else {
    product_by_tiles(tiles, a, b, rows, cols, terms, c, ldc, add);
  }
}

/// Right tiles of `columns` columns and `terms` terms; room for `grid_terms` tiles of terms. As in
/// AmxKernels::right_tile, element (j, k) is at from[j * ld + k], or from[k * ld + j] transposed.
inline void pack_right(const uint16_t* from, int64_t ld, bool trans, int64_t columns, int64_t terms,
                       int64_t grid_terms, uint16_t* to) {
  for (int64_t j = 0; j < columns; j += kTileRows)
    for (int64_t k = 0; k < terms; k += kTileBf16)
      amx_kernels().right_tile(from + (trans ? k * ld + j : j * ld + k), ld, trans,
                               std::min<int64_t>(kTileRows, columns - j),
                               std::min<int64_t>(kTileBf16, terms - k),
                               to + (j / kTileRows * grid_terms + k / kTileBf16) * kTileElements);
}

/// Left tiles of the transpose of [terms, rows], whole tiles.
inline void pack_left_transposed(const uint16_t* from, int64_t ld, int64_t rows, int64_t terms,
                                 uint16_t* to) {
  for (int64_t i = 0; i < rows; i += kTileRows)
    for (int64_t k = 0; k < terms; k += kTileBf16, to += kTileElements)
      amx_kernels().left_tile(from + k * ld + i, ld, true, kTileRows, kTileBf16, to);
}

/// [rows, cols], `from_ld` apart, to [padded_rows, ld], zero beyond.
inline void pad_rows(const uint16_t* from, int64_t from_ld, int64_t rows, int64_t cols,
                     uint16_t* to, int64_t padded_rows, int64_t ld) {
  std::memset(to, 0, static_cast<size_t>(padded_rows * ld) * sizeof(uint16_t));
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(to + i * ld, from + i * from_ld, static_cast<size_t>(cols) * sizeof(uint16_t));
}

/// By the instructions of AMX or of avx512_bf16, or in plain C++ for tests on any machine.
enum class TileUnit { amx, emulated_amx, pairs, emulated_pairs };
std::unique_ptr<Kernel> attention_forward_tiles(const NodeView& node, TileUnit unit);
std::unique_ptr<Kernel> attention_backward_tiles(const NodeView& node, TileUnit unit);

/// make(the class of tiles).
template <typename Make>
std::unique_ptr<Kernel> with_tiles(TileUnit unit, Make&& make) {
  switch (unit) {
#if defined(__x86_64__)
    case TileUnit::amx:
      return make(std::type_identity<AmxTiles>());
    case TileUnit::pairs:
      return make(std::type_identity<RegisterTiles<PairProducts>>());
#endif
    case TileUnit::emulated_pairs:
      return make(std::type_identity<MemoryTiles<EmulatedPairs>>());
    default:
      return make(std::type_identity<EmulatedTiles>());
  }
}

}  // namespace brrr::cpu
