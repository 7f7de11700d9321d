#include "backend/cpu/spatial/conv_tiles.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/spatial/conv_tiles.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include "backend/cpu/products/gemm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

constexpr int kMostConvVectors = 8;
/// The width in vectors of a tile with so many rows, chosen so that its accumulators, one vector of
/// positions and one broadcast weight fit into the registers.
constexpr int conv_tile_vectors(int rows) {
  constexpr int kRegisters = kMaxAccumulators + 4;
  return std::clamp((kRegisters - 1) / (rows + 1), rows <= 4 && kMaxAccumulators >= 12 ? 3 : 2,
                    kMostConvVectors);
}

template <int kRows, int kVectors>
void conv_tile(const ConvTilesArgs& t, int64_t row, int64_t position) {
  VF sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[i][v] = hn::Zero(DF());
  // Three rows share one base pointer: x86 addressing modes reach 0, 1 and 2 strides from it.
  constexpr int kBases = (kRows + 2) / 3;
  const float* base[kBases];
  const int64_t ld = t.weights_ld;
#pragma GCC unroll 16
  for (int g = 0; g < kBases; ++g) base[g] = t.weights + (row + 3 * g) * ld;
  const float* const planes = t.planes + position;
  const int32_t *offset = t.offsets, *const end = offset + t.terms;
  for (; offset != end; ++offset) {
    const float* const x = planes + *offset;
    VF right[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) right[v] = load(x + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const VF left = splat(base[i / 3][i % 3 * ld]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[i][v] = hn::MulAdd(left, right[v], sums[i][v]);
    }
#pragma GCC unroll 16
    for (int g = 0; g < kBases; ++g) ++base[g];
  }
  float* y = t.sums + row * t.sums_ld + position;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i, y += t.sums_ld)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* const to = y + v * kLanes;
      store(t.add ? hn::Add(load(to), sums[i][v]) : sums[i][v], to);
    }
}

using ConvTile = void (*)(const ConvTilesArgs&, int64_t row, int64_t position);

/// conv_tile<rows, vectors> at [rows - 1][vectors - 1].
struct ConvTileTable {
  ConvTile tiles[kMr][kMostConvVectors] = {};
  constexpr ConvTileTable() { fill(std::make_integer_sequence<int, kMr>()); }
  template <int... kRows>
  constexpr void fill(std::integer_sequence<int, kRows...>) {
    (fill_rows<kRows + 1>(), ...);
  }
  template <int kRows>
  constexpr void fill_rows() {
    fill_row<kRows>(std::make_integer_sequence<int, conv_tile_vectors(kRows)>());
  }
  template <int kRows, int... kVectors>
  constexpr void fill_row(std::integer_sequence<int, kVectors...>) {
    ((tiles[kRows - 1][kVectors] = &conv_tile<kRows, kVectors + 1>), ...);
  }
};
const ConvTileTable kConvTiles;  // clang 14 does not evaluate its constructor as constexpr

void multiply_conv_tiles(const ConvTilesArgs& t) {
  // Blocks have nearly equal heights: a block of few rows has too few independent accumulators to
  // hide the latency of its multiply-adds.
  const int64_t blocks = (t.rows + kMr - 1) / kMr, low = t.rows / blocks, higher = t.rows % blocks,
                vectors = conv_tile_vectors(static_cast<int>(low + (higher > 0 ? 1 : 0))),
                all = (t.positions + kLanes - 1) / kLanes;
  const auto tile = [&](int64_t block, int64_t v) {
    const int64_t rows = low + (block < higher ? 1 : 0), across = std::min(vectors, all - v);
    kConvTiles.tiles[rows - 1][across - 1](t, block * low + std::min(block, higher), v * kLanes);
  };
  // If the planes fit into L1, each block of weights is read once and passes over all positions.
  // Otherwise the positions of one tile are kept in L1 and all weights pass over them.
  constexpr int64_t kL1Floats = 6 << 10;
  if (t.offsets[t.terms - 1] + t.positions <= kL1Floats) {
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t v = 0; v < all; v += vectors) tile(b, v);
  } else {
    for (int64_t v = 0; v < all; v += vectors)
      for (int64_t b = 0; b < blocks; ++b) tile(b, v);
  }
}

HWY_INLINE void take_elements(const float* x, int64_t stride, int64_t n, float* y) {
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= n; i += kLanes) store(load(x + i), y + i);
    if (i < n && n >= kLanes) {
      store(load(x + n - kLanes), y + n - kLanes);
      return;
    }
  } else if (stride == 2) {
    for (; i + kLanes < n; i += kLanes) {
      VF even, odd;
      hn::LoadInterleaved2(DF(), x + 2 * i, even, odd);
      store(even, y + i);
    }
  }
  for (; i < n; ++i) y[i] = x[i * stride];
}

void lay_out_rows(const PlaneRows& p) {
  const float* x = p.x;
  float* y = p.y;
  for (int64_t r = 0; r < p.rows; ++r, x += p.x_ld, y += p.width) {
    for (int64_t i = 0; i < p.first; ++i) y[i] = 0;
    take_elements(x, p.stride, p.last - p.first, y + p.first);
    for (int64_t i = p.last; i < p.width; ++i) y[i] = 0;
  }
}

void pack_rows(const float* x, int64_t x_ld, int64_t rows, int64_t n, float number, float* y) {
  if (n == x_ld) {
    n *= rows;
    rows = 1;
  }
  const VF b = splat(number);
  for (int64_t r = 0; r < rows; ++r, x += x_ld, y += n) {
    if (n < kLanes) {
      for (int64_t i = 0; i < n; ++i) y[i] = x[i] + number;
      continue;
    }
    // Loaded before the loop, which overwrites it if y equals x.
    const VF last = hn::Add(load(x + n - kLanes), b);
    for (int64_t i = 0; i + kLanes <= n; i += kLanes) store(hn::Add(load(x + i), b), y + i);
    store(last, y + n - kLanes);
  }
}

constexpr ConvTiles kTiles = {kLanes, &multiply_conv_tiles, &lay_out_rows, &pack_rows};

}  // namespace

const ConvTiles& conv_tiles_table() { return kTiles; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(conv_tiles_table);
const ConvTiles& conv_tiles() { return HWY_DYNAMIC_DISPATCH(conv_tiles_table)(); }
}  // namespace brrr::cpu
#endif
