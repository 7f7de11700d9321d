#include "backend/cpu/spatial/channel_tiles.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/spatial/channel_tiles.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include "backend/cpu/products/gemm_simd-inl.h"
#include "backend/cpu/simd/functions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

// Rows of the tallest tile: 14 x 2 accumulators, two vectors of b and one element of a fill 31 of
// the 32 registers of AVX-512; pictures are often 7, 14, 28, 56 or 112 pixels wide.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr int kTallest = 14;
#else
constexpr int kTallest = kMr;
#endif
constexpr int64_t kTermsAhead = 40, kFloatsOfLine = 16;
constexpr int kTwoLines = kTallest / 2;  // most rows of a tile that has two lines

struct ChannelTile {
  const float* a;
  const float* next_a;  // of the tile that follows
  const float* b;
  float* c;
  int64_t columns;
  const float* bias;
  const float* residual;
};

template <int kLines, int kRows, int kVectors>
HWY_INLINE void store_sums(const ChannelTilesArgs& t, const ChannelTile& at,
                           const VF (&sums)[kLines * kRows][kVectors]) {
  const DF d;
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const int64_t count = std::min<int64_t>(at.columns - v * kLanes, kLanes);
    if (count <= 0) break;
    if (count == kLanes) {
      const VF bias = at.bias != nullptr ? load(at.bias + v * kLanes) : hn::Zero(d);
#pragma GCC unroll 16
      for (int i = 0; i < kLines * kRows; ++i) {
        float* to = at.c + i / kRows * t.c_line + i % kRows * t.c_row + v * kLanes;
        VF sum = hn::Add(sums[i][v], bias);
        if (t.add) sum = hn::Add(sum, load(to));
        if (at.residual != nullptr) sum = hn::Add(sum, load(at.residual + (to - at.c)));
        store(t.relu ? f_relu(sum) : sum, to);
      }
      continue;
    }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    const auto exists = hn::FirstN(d, static_cast<size_t>(count));
    const VF bias =
        at.bias != nullptr ? hn::MaskedLoad(exists, d, at.bias + v * kLanes) : hn::Zero(d);
#pragma GCC unroll 16
    for (int i = 0; i < kLines * kRows; ++i) {
      float* to = at.c + i / kRows * t.c_line + i % kRows * t.c_row + v * kLanes;
      VF sum = hn::Add(sums[i][v], bias);
      if (t.add) sum = hn::Add(sum, hn::MaskedLoad(exists, d, to));
      if (at.residual != nullptr)
        sum = hn::Add(sum, hn::MaskedLoad(exists, d, at.residual + (to - at.c)));
      hn::BlendedStore(t.relu ? f_relu(sum) : sum, exists, d, to);
    }
#else
    // Older instruction sets have no cheap masks.
    const auto bytes = static_cast<size_t>(count) * sizeof(float);
    float bias[kLanes] = {}, old[kLanes] = {};
    if (at.bias != nullptr) std::memcpy(bias, at.bias + v * kLanes, bytes);
#pragma GCC unroll 16
    for (int i = 0; i < kLines * kRows; ++i) {
      float* to = at.c + i / kRows * t.c_line + i % kRows * t.c_row + v * kLanes;
      VF sum = hn::Add(sums[i][v], load(bias));
      if (t.add) {
        std::memcpy(old, to, bytes);
        sum = hn::Add(sum, load(old));
      }
      if (at.residual != nullptr) {
        std::memcpy(old, at.residual + (to - at.c), bytes);
        sum = hn::Add(sum, load(old));
      }
      float result[kLanes];
      store(t.relu ? f_relu(sum) : sum, result);
      std::memcpy(to, result, bytes);
    }
#endif
  }
}

template <int kLines, int kRows, int kVectors>
void channel_tile(const ChannelTilesArgs& t, const ChannelTile& at) {
  VF sums[kLines * kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kLines * kRows; ++i) {
    // The result is needed only after all terms: fetch it meanwhile.
    const float* to = at.c + i / kRows * t.c_line + i % kRows * t.c_row;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = hn::Zero(DF());
      if (v * kLanes % kFloatsOfLine == 0) __builtin_prefetch(to + v * kLanes, 1, 3);
    }
  }
  // The processor foresees that a row goes on, but not where the next tile's rows begin.
#pragma GCC unroll 16
  for (int i = 0; i < kLines * kRows; ++i)
    prefetch(at.next_a + i / kRows * t.a_line + i % kRows * t.a_row);
  // Three rows share one base pointer: x86 addressing modes reach 0, 1 and 2 strides from it.
  constexpr int kBases = (kRows + 2) / 3;
  const int64_t row = t.a_row, a_term = t.a_term, b_term = t.b_term;
  for (int64_t r = 0; r < t.runs; ++r) {
    const float* base[kLines][kBases];
#pragma GCC unroll 2
    for (int l = 0; l < kLines; ++l)
#pragma GCC unroll 8
      for (int g = 0; g < kBases; ++g) base[l][g] = at.a + t.a_runs[r] + l * t.a_line + 3 * g * row;
    const float* b = at.b + t.b_runs[r];
    for (int64_t k = t.run_terms[r]; k > 0; --k) {
      // Panels of weights come from memory the first time.
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) prefetch_far(b + kTermsAhead * b_term + v * kLanes);
      prefetch(b + 8 * b_term);
      VF right[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) right[v] = load(b + v * kLanes);
#pragma GCC unroll 2
      for (int l = 0; l < kLines; ++l)
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const VF left = splat(base[l][i / 3][i % 3 * row]);
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v)
            sums[l * kRows + i][v] = hn::MulAdd(left, right[v], sums[l * kRows + i][v]);
        }
#pragma GCC unroll 2
      for (int l = 0; l < kLines; ++l)
#pragma GCC unroll 8
        for (int g = 0; g < kBases; ++g) base[l][g] += a_term;
      b += b_term;
    }
  }
  store_sums<kLines, kRows, kVectors>(t, at, sums);
}

using ChannelTileFunction = void (*)(const ChannelTilesArgs&, const ChannelTile&);

/// channel_tile<lines, rows, vectors> at [lines - 1][rows - 1][vectors - 1].
struct ChannelTileTable {
  ChannelTileFunction tiles[2][kTallest][2] = {};
  constexpr ChannelTileTable() { fill(std::make_integer_sequence<int, kTallest>()); }
  template <int... kRows>
  constexpr void fill(std::integer_sequence<int, kRows...>) {
    (fill_rows<kRows + 1>(), ...);
  }
  template <int kRows>
  constexpr void fill_rows() {
    tiles[0][kRows - 1][0] = &channel_tile<1, kRows, 1>;
    tiles[0][kRows - 1][1] = &channel_tile<1, kRows, 2>;
    if constexpr (kRows <= kTwoLines) {
      tiles[1][kRows - 1][0] = &channel_tile<2, kRows, 1>;
      tiles[1][kRows - 1][1] = &channel_tile<2, kRows, 2>;
    }
  }
};
const ChannelTileTable kChannelTiles;  // clang 14 does not evaluate its constructor as constexpr

void multiply_channels(const ChannelTilesArgs& t) {
  if (t.rows == 0) return;
  // Tiles of nearly equal heights: one of few rows has too few independent accumulators to hide the
  // latency of its multiply-adds.
  const int64_t tiles = (t.rows + kTallest - 1) / kTallest, low = t.rows / tiles,
                higher = t.rows % tiles;
  const bool in_pairs = t.rows <= kTwoLines && t.lines > 1;
  for (int64_t j = 0; j < t.columns; j += 2 * kLanes) {
    const int64_t vectors = t.columns - j > kLanes ? 2 : 1;
    for (int64_t line = 0; line < t.lines;) {
      const int64_t lines = in_pairs && line + 1 < t.lines ? 2 : 1;
      for (int64_t tile = 0, row = 0; tile < tiles; ++tile) {
        const int64_t rows = low + (tile < higher ? 1 : 0);
        const int64_t to = line * t.c_line + row * t.c_row + j;
        const float* const a = t.a + line * t.a_line + row * t.a_row + t.a_runs[0];
        kChannelTiles.tiles[lines - 1][rows - 1][vectors - 1](
            t,
            {a - t.a_runs[0],
             tile + 1 < tiles ? a + rows * t.a_row : t.a + t.a_runs[0] + (line + lines) * t.a_line,
             t.b + j, t.c + to, t.columns - j, t.bias != nullptr ? t.bias + j : nullptr,
             t.residual != nullptr ? t.residual + to : nullptr});
        row += rows;
      }
      line += lines;
    }
  }
}

void copy_channels(const float* from, int64_t from_ld, int64_t rows, int64_t n, float* to,
                   int64_t to_ld) {
  if (from_ld == n && to_ld == n) {
    std::memcpy(to, from, static_cast<size_t>(rows * n) * sizeof(float));
    return;
  }
  for (int64_t r = 0; r < rows; ++r, from += from_ld, to += to_ld) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(load(from + i), to + i);
    for (; i < n; ++i) to[i] = from[i];
  }
}

constexpr ChannelTiles kTable = {kLanes, kTallest, &multiply_channels, &copy_channels};

}  // namespace

const ChannelTiles& channel_tiles_table() { return kTable; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(channel_tiles_table);
const ChannelTiles& channel_tiles() { return HWY_DYNAMIC_DISPATCH(channel_tiles_table)(); }
}  // namespace brrr::cpu
#endif
