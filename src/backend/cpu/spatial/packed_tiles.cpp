#include "backend/cpu/spatial/packed_tiles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "backend/cpu/isa.h"
#include "backend/cpu/simd/simd_types.h"
#include "base/errors.h"
#include "base/panels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/spatial/packed_tiles.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include "backend/cpu/products/gemm_simd-inl.h"
#include "backend/cpu/simd/functions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

// Rows of the tallest tile, as in channel_tiles.cpp.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr int kTallestPacked = 14;
#else
constexpr int kTallestPacked = kMr;
#endif
constexpr int kTallestOfTwoLines = kTallestPacked / 2;
constexpr int64_t kTileWidth = 2 * kLanes;

/// The first row of a tile, and the column of the panel where it begins.
struct PackedTile {
  const std::byte* a;
  const int32_t* starts;
  int64_t column;
};

/// Pointers to the rows of a tile. Three rows share one: x86 addressing modes reach 0, 1 and 2
/// strides from it.
template <int kLines, int kRows, typename T>
struct TileRows {
  static constexpr int kBases = (kRows + 2) / 3;
  const T* base[kLines][kBases];
  int64_t row;

  HWY_INLINE TileRows(const PackedTilesArgs& t, const std::byte* a)
      : row(t.a_row / static_cast<int64_t>(sizeof(T))) {
#pragma GCC unroll 2
    for (int l = 0; l < kLines; ++l)
#pragma GCC unroll 8
      for (int g = 0; g < kBases; ++g)
        base[l][g] = reinterpret_cast<const T*>(a + l * t.a_line + 3 * g * t.a_row);
  }
  HWY_INLINE const T* at(int l, int i) const { return base[l][i / 3] + i % 3 * row; }
  HWY_INLINE void advance(int64_t terms) {
#pragma GCC unroll 2
    for (int l = 0; l < kLines; ++l)
#pragma GCC unroll 8
      for (int g = 0; g < kBases; ++g) base[l][g] += terms;
  }
};

// -- panels of 16 bits

constexpr int64_t kFarAhead = 4 * kPanelHalf;  // panels come from memory the first time

/// Where the words of a vector of columns lie in a block of 32 terms, in 16-bit numbers.
HWY_INLINE int64_t column_in_block(int64_t column) {
  return column / 16 * kPanelHalf + column % 16 * 2;
}

template <bool kOdd>
HWY_INLINE VF term_of_words(Bf16, hn::Vec<DU> words) {
  return hn::BitCast(DF(),
                     kOdd ? hn::And(words, hn::Set(DU(), 0xffff0000u)) : hn::ShiftLeft<16>(words));
}
template <bool kOdd>
HWY_INLINE VF term_of_words(F16, hn::Vec<DU> words) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const hn::Rebind<hwy::float16_t, DF> d;
  const auto bits = kOdd ? hn::ShiftRight<16>(words) : hn::And(words, hn::Set(DU(), 0xffffu));
  return hn::PromoteTo(DF(), hn::BitCast(d, hn::DemoteTo(D16(), hn::BitCast(DI(), bits))));
#else
  alignas(64) uint32_t from[kLanes];
  float floats[kLanes];
  hn::StoreU(words, DU(), from);
  for (int64_t i = 0; i < kLanes; ++i)
    floats[i] = float_from_f16(static_cast<uint16_t>(kOdd ? from[i] >> 16 : from[i]));
  return load(floats);
#endif
}

/// Adds one term: of pairs `words`, the first or the second.
template <typename W, bool kOdd, int kLines, int kRows>
HWY_INLINE void add_term(const TileRows<kLines, kRows, float>& rows, int64_t term,
                         const uint16_t* const (&words)[2], VF (&sums)[kLines * kRows][2]) {
  VF right[2];
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v)
    right[v] =
        term_of_words<kOdd>(W{}, hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(words[v])));
#pragma GCC unroll 2
  for (int l = 0; l < kLines; ++l)
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const VF left = splat(rows.at(l, i)[term]);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v)
        sums[l * kRows + i][v] = hn::MulAdd(left, right[v], sums[l * kRows + i][v]);
    }
}

template <int kLines, int kRows>
HWY_INLINE void store_tile(const VF (&sums)[kLines * kRows][2], float* to) {
#pragma GCC unroll 16
  for (int i = 0; i < kLines * kRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) store(sums[i][v], to + i * kTileWidth + v * kLanes);
}

/// Terms in ascending order, one at a time.
template <typename W>
struct WidenedTerms {
  static constexpr bool kIntegers = false;

  template <int kLines, int kRows>
  static void tile(const PackedTilesArgs& t, const PackedTile& at, float* to) {
    VF sums[kLines * kRows][2];
#pragma GCC unroll 16
    for (int i = 0; i < kLines * kRows; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[i][v] = hn::Zero(DF());
    const auto* const panel = reinterpret_cast<const uint16_t*>(t.b);
    const int64_t columns[2] = {column_in_block(at.column), column_in_block(at.column + kLanes)};
    for (int64_t r = 0, k = 0; r < t.runs; ++r) {
      TileRows<kLines, kRows, float> rows(t, at.a + t.a_runs[r]);
      for (const int64_t end = k + t.run_terms; k < end;) {
        // A block of 32 terms, or the part of it that the run has.
        const int64_t stop = std::min(end, (k / kPanelTerms + 1) * kPanelTerms);
        const uint16_t* const block =
            panel + k / kPanelTerms * 2 * kPanelHalf + k % kPanelTerms / 2 * kPanelPair;
        const uint16_t* words[2] = {block + columns[0], block + columns[1]};
        if (k % 2 != 0) {
          add_term<W, true>(rows, 0, words, sums);
          rows.advance(1);
          words[0] += kPanelPair;
          words[1] += kPanelPair;
          ++k;
        }
        for (; k + 2 <= stop; k += 2) {
          prefetch(words[0] + 2 * kPanelHalf);
          prefetch(words[1] + 2 * kPanelHalf);
          prefetch_far(words[0] + kFarAhead);
          prefetch_far(words[1] + kFarAhead);
          add_term<W, false>(rows, 0, words, sums);
          add_term<W, true>(rows, 1, words, sums);
          rows.advance(2);
          words[0] += kPanelPair;
          words[1] += kPanelPair;
        }
        if (k < stop) {
          add_term<W, false>(rows, 0, words, sums);
          rows.advance(1);
          ++k;
        }
      }
    }
    store_tile<kLines, kRows>(sums, to);
  }
};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
/// Adds, to each lane of a sum, two products of bf16 or four of uint8 and int8.
HWY_INLINE void add_dots(VF& sum, hn::Vec<DU> right, hn::Vec<DU> left) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(right.raw), "v"(left.raw));
}
HWY_INLINE void add_dots(hn::Vec<DI>& sum, hn::Vec<DU> right, hn::Vec<DU> left) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(right.raw), "v"(left.raw));
}

/// One word of the left operand, which holds two or four terms, in every lane.
HWY_INLINE hn::Vec<DU> word_in_lanes(const void* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof(word));
  return hn::Set(DU(), word);
}

template <int kLines, int kRows, typename T, typename V>
HWY_INLINE void add_word(const TileRows<kLines, kRows, T>& rows, const hn::Vec<DU> (&right)[2],
                         V (&sums)[kLines * kRows][2]) {
#pragma GCC unroll 2
  for (int l = 0; l < kLines; ++l)
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const auto left = word_in_lanes(rows.at(l, i));
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) add_dots(sums[l * kRows + i][v], right[v], left);
    }
}

/// Calls step(rows, words of the panel) for each pair of terms; runs have an even number of them.
/// One loop a run: with a loop for each block of the panel, GCC 12 keeps the sums in memory.
template <int kLines, int kRows, typename Step>
HWY_INLINE void each_pair(const PackedTilesArgs& t, const PackedTile& at, Step step) {
  const auto* words = reinterpret_cast<const uint16_t*>(t.b);
  int64_t left = kPanelTerms;  // terms of the block that come
  for (int64_t r = 0; r < t.runs; ++r) {
    TileRows<kLines, kRows, uint16_t> rows(t, at.a + t.a_runs[r]);
    for (int64_t k = t.run_terms; k > 0; k -= 2) {
      step(rows, words);
      rows.advance(2);
      left -= 2;
      words += left == 0 ? kPanelPair + kPanelHalf : kPanelPair;
      left = left == 0 ? kPanelTerms : left;
    }
  }
}

/// By VDPBF16PS.
struct PairTerms {
  static constexpr bool kIntegers = false;

  template <int kLines, int kRows>
  static void tile(const PackedTilesArgs& t, const PackedTile& at, float* to) {
    VF sums[kLines * kRows][2];
#pragma GCC unroll 16
    for (int i = 0; i < kLines * kRows; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[i][v] = hn::Zero(DF());
    const int64_t first = column_in_block(at.column), second = column_in_block(at.column + kLanes);
    each_pair<kLines, kRows>(t, at, [&](const auto& rows, const uint16_t* words) BRRR_INLINE_BODY {
      prefetch(words + 2 * kPanelHalf + first);
      prefetch(words + 2 * kPanelHalf + second);
      const hn::Vec<DU> right[2] = {
          hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(words + first)),
          hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(words + second))};
      add_word(rows, right, sums);
    });
    store_tile<kLines, kRows>(sums, to);
  }
};
#endif

// -- panels of integers

using VI = hn::Vec<DI>;

template <int kLines, int kRows>
HWY_INLINE void start_integers(const PackedTilesArgs& t, const PackedTile& at,
                               VI (&sums)[kLines * kRows][2]) {
#pragma GCC unroll 2
  for (int l = 0; l < kLines; ++l)
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[l * kRows + i][v] = hn::Set(DI(), at.starts[l * t.rows + i]);
}
template <int kLines, int kRows>
HWY_INLINE void store_integers(const VI (&sums)[kLines * kRows][2], float* to) {
#pragma GCC unroll 16
  for (int i = 0; i < kLines * kRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
      store(hn::BitCast(DF(), sums[i][v]), to + i * kTileWidth + v * kLanes);
}

/// Calls step(rows, words of the panel) for each four terms.
template <int kLines, int kRows, typename Step>
HWY_INLINE void each_word(const PackedTilesArgs& t, const PackedTile& at, Step step) {
  constexpr int64_t kWord = kPanelColumns * 4, kAhead = 8 * kWord, kFar = 40 * kWord;
  const auto* words = reinterpret_cast<const uint8_t*>(t.b) + at.column * 4;
  for (int64_t r = 0; r < t.runs; ++r) {
    TileRows<kLines, kRows, int8_t> rows(t, at.a + t.a_runs[r]);
    for (int64_t k = t.run_terms; k > 0; k -= 4, words += kWord) {
      prefetch(words + kAhead);
      prefetch_far(words + kFar);
      if (kTileWidth > 16) {
        prefetch(words + kAhead + 64);
        prefetch_far(words + kFar + 64);
      }
      step(rows, words);
      rows.advance(4);
    }
  }
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
/// By VPDPBUSD.
struct VnniTerms {
  static constexpr bool kIntegers = true;

  template <int kLines, int kRows>
  static void tile(const PackedTilesArgs& t, const PackedTile& at, float* to) {
    VI sums[kLines * kRows][2];
    start_integers<kLines, kRows>(t, at, sums);
    each_word<kLines, kRows>(t, at, [&](const auto& rows, const uint8_t* words) BRRR_INLINE_BODY {
      const hn::Vec<DU> right[2] = {
          hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(words)),
          hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(words + 4 * kLanes))};
      add_word(rows, right, sums);
    });
    store_integers<kLines, kRows>(sums, to);
  }
};
#endif

/// Anywhere: bytes of a word as two vectors of 16-bit integers, multiplied in pairs.
struct IntegerTerms {
  static constexpr bool kIntegers = true;

#if HWY_TARGET != HWY_SCALAR
  using D2 = hn::Repartition<int16_t, DI>;
  using V2 = hn::Vec<D2>;

  static HWY_INLINE VI add_two(VI sum, V2 a, V2 b) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
    VI none = hn::Zero(DI());  // x86 adds the products of neighbours; other targets use both sums
    return hn::ReorderWidenMulAccumulate(DI(), a, b, sum, none);
#else
    const VI x = hn::BitCast(DI(), a), y = hn::BitCast(DI(), b);
    const VI low =
        hn::Mul(hn::ShiftRight<16>(hn::ShiftLeft<16>(x)), hn::ShiftRight<16>(hn::ShiftLeft<16>(y)));
    return hn::Add(sum, hn::Add(low, hn::Mul(hn::ShiftRight<16>(x), hn::ShiftRight<16>(y))));
#endif
  }
  static HWY_INLINE V2 two_of(int8_t first, int8_t second) {
    const auto low = static_cast<uint16_t>(first), high = static_cast<uint16_t>(second);
    return hn::BitCast(D2(), hn::Set(DI(), static_cast<int32_t>(low | uint32_t{high} << 16)));
  }
#endif

  template <int kLines, int kRows>
  static void tile(const PackedTilesArgs& t, const PackedTile& at, float* to) {
    VI sums[kLines * kRows][2];
    start_integers<kLines, kRows>(t, at, sums);
    each_word<kLines, kRows>(t, at, [&](const auto& rows, const uint8_t* words) BRRR_INLINE_BODY {
#if HWY_TARGET != HWY_SCALAR
      V2 even[2], odd[2];
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const auto four =
            hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(words + 4 * v * kLanes));
        const auto bytes = hn::Set(DU(), 0x00ff00ffu);
        even[v] = hn::BitCast(D2(), hn::And(four, bytes));
        odd[v] = hn::BitCast(D2(), hn::And(hn::ShiftRight<8>(four), bytes));
      }
#pragma GCC unroll 2
      for (int l = 0; l < kLines; ++l)
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const int8_t* a = rows.at(l, i);
          const V2 left_even = two_of(a[0], a[2]), left_odd = two_of(a[1], a[3]);
#pragma GCC unroll 2
          for (int v = 0; v < 2; ++v)
            sums[l * kRows + i][v] =
                add_two(add_two(sums[l * kRows + i][v], left_even, even[v]), left_odd, odd[v]);
        }
#else
      for (int l = 0; l < kLines; ++l)
        for (int i = 0; i < kRows; ++i)
          for (int v = 0; v < 2; ++v) {
            int32_t sum = hn::GetLane(sums[l * kRows + i][v]);
            for (int k = 0; k < 4; ++k) sum += rows.at(l, i)[k] * words[4 * v + k];
            sums[l * kRows + i][v] = hn::Set(DI(), sum);
          }
#endif
    });
    store_integers<kLines, kRows>(sums, to);
  }
};

// -- whole products

/// What follows the sums [lines, rows, ld] of a tile.
struct FinishedTile {
  const float* sums;
  int64_t ld;
  int64_t line, lines, row, rows;
  int64_t column, columns;
};

template <typename Y, bool kIntegers>
void finish_tile(const PackedTilesArgs& t, const FinishedTile& tile) {
  each_vector(tile.columns, [&](auto access, int64_t j) {
    const int64_t c = tile.column + j;
    const VF bias = t.bias != nullptr ? access.load(t.bias + c) : hn::Zero(DF());
    VF scale = hn::Zero(DF());
    if constexpr (kIntegers) scale = hn::Mul(access.load(t.scales + c), splat(t.scale));
    const float* from = tile.sums + j;
    for (int64_t l = 0; l < tile.lines; ++l) {
      const int64_t to = (tile.line + l) * t.y_line + tile.row * t.y_row + c;
      auto* y = static_cast<Y*>(t.y) + to;
      const Y* residual = t.residual != nullptr ? static_cast<const Y*>(t.residual) + to : nullptr;
      for (int64_t i = 0; i < tile.rows; ++i, from += tile.ld, y += t.y_row) {
        VF sum = load(from);
        if constexpr (kIntegers)
          sum = hn::MulAdd(hn::ConvertTo(DF(), hn::BitCast(DI(), sum)), scale, bias);
        else
          sum = hn::Add(sum, bias);
        if (residual != nullptr) sum = hn::Add(sum, access.load(residual + i * t.y_row));
        access.store(t.relu ? f_relu(sum) : sum, y);
      }
    }
  });
}

template <bool kIntegers>
void finish_tile_of(const PackedTilesArgs& t, const FinishedTile& tile) {
  with_type(t.dtype, [&](auto type) { finish_tile<decltype(type), kIntegers>(t, tile); });
}

void finish_rows(bool integers, const PackedTilesArgs& t, const float* sums, int64_t sums_ld,
                 int64_t line, int64_t row, int64_t rows) {
  const FinishedTile tile{sums, sums_ld, line, 1, row, rows, 0, t.columns};
  integers ? finish_tile_of<true>(t, tile) : finish_tile_of<false>(t, tile);
}

template <typename Terms>
struct PackedTileTable {
  using Function = void (*)(const PackedTilesArgs&, const PackedTile&, float*);
  Function tiles[2][kTallestPacked] = {};

  PackedTileTable() { fill(std::make_integer_sequence<int, kTallestPacked>()); }
  template <int... kRows>
  void fill(std::integer_sequence<int, kRows...>) {
    (fill_rows<kRows + 1>(), ...);
  }
  template <int kRows>
  void fill_rows() {
    tiles[0][kRows - 1] = &Terms::template tile<1, kRows>;
    if constexpr (kRows <= kTallestOfTwoLines)
      tiles[1][kRows - 1] = &Terms::template tile<2, kRows>;
  }
};

template <typename Terms>
void multiply_packed(const PackedTilesArgs& t) {
  static const PackedTileTable<Terms> kTable;
  if (t.rows == 0) return;
  // Tiles of nearly equal heights, as in channel_tiles.cpp.
  const int64_t tiles = (t.rows + kTallestPacked - 1) / kTallestPacked, low = t.rows / tiles,
                higher = t.rows % tiles;
  const bool in_pairs = t.rows <= kTallestOfTwoLines && t.lines > 1;
  alignas(64) float sums[kTallestPacked * kTileWidth];
  for (int64_t line = 0; line < t.lines;) {
    const int64_t lines = in_pairs && line + 1 < t.lines ? 2 : 1;
    for (int64_t tile = 0, row = 0; tile < tiles; ++tile) {
      const int64_t rows = low + (tile < higher ? 1 : 0);
      const std::byte* const a = t.a + line * t.a_line + row * t.a_row;
      const int32_t* const starts = t.starts != nullptr ? t.starts + line * t.rows + row : nullptr;
      for (int64_t j = 0; j < t.columns; j += kTileWidth) {
        kTable.tiles[lines - 1][rows - 1](t, {a, starts, j}, sums);
        finish_tile_of<Terms::kIntegers>(
            t, {sums, kTileWidth, line, lines, row, rows, j, std::min(kTileWidth, t.columns - j)});
      }
      row += rows;
    }
    line += lines;
  }
}

void multiply_terms(PackedTerms terms, const PackedTilesArgs& t) {
  switch (terms) {
    case PackedTerms::bf16_as_floats:
      return multiply_packed<WidenedTerms<Bf16>>(t);
    case PackedTerms::f16_as_floats:
      return multiply_packed<WidenedTerms<F16>>(t);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    case PackedTerms::bf16_pairs:
      return multiply_packed<PairTerms>(t);
    case PackedTerms::integers:
      return has_vnni() ? multiply_packed<VnniTerms>(t) : multiply_packed<IntegerTerms>(t);
#else
    case PackedTerms::integers:
      return multiply_packed<IntegerTerms>(t);
#endif
    default:
      BRRR_CHECK(false, "terms that this instruction set does not multiply");
  }
}

/// The largest magnitude among n numbers, as its bits, which are ordered like the magnitudes.
template <typename U>
HWY_INLINE U largest_bits(const void* x, int64_t n) {
  const hn::ScalableTag<U> d;
  constexpr auto kLanesOfU = static_cast<int64_t>(hn::MaxLanes(d));
  constexpr U kMagnitude = std::numeric_limits<U>::max() / 2;
  const auto* p = static_cast<const U*>(x);
  const auto mask = hn::Set(d, kMagnitude);
  auto most = hn::Zero(d), other = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * kLanesOfU <= n; i += 2 * kLanesOfU) {
    most = hn::Max(most, hn::And(hn::LoadU(d, p + i), mask));
    other = hn::Max(other, hn::And(hn::LoadU(d, p + i + kLanesOfU), mask));
  }
  alignas(64) U lanes[kLanesOfU];
  hn::StoreU(hn::Max(most, other), d, lanes);
  U result = 0;
  for (const U lane : lanes) result = std::max(result, lane);
  for (; i < n; ++i) result = std::max<U>(result, p[i] & kMagnitude);
  return result;
}

float largest(DType dtype, const void* x, int64_t n) {
  float most = 0;
  if (dtype == DType::f32)
    most = std::bit_cast<float>(largest_bits<uint32_t>(x, n));
  else if (dtype == DType::bf16)
    most = float_from_bf16(largest_bits<uint16_t>(x, n));
  else
    most = float_from_f16(largest_bits<uint16_t>(x, n));
  return std::isfinite(most) ? most : std::numeric_limits<float>::quiet_NaN();
}

void quantize_pixels(DType dtype, const void* x, int64_t ld, int64_t pixels, int64_t channels,
                     float inverse, int8_t* to, int64_t to_ld, int32_t* sums) {
  with_type(dtype, [&](auto type) {
    const auto* from = static_cast<const decltype(type)*>(x);
    const hn::Rebind<int8_t, DF> bytes;
    const VF factor = splat(inverse);
    for (int64_t p = 0; p < pixels; ++p, from += ld, to += to_ld) {
      auto total = hn::Zero(DI());
      int64_t c = 0;
      for (; c + kLanes <= channels; c += kLanes) {
        const auto integers = hn::NearestInt(hn::Mul(load(from + c), factor));
        hn::StoreU(hn::DemoteTo(bytes, integers), bytes, to + c);
        total = hn::Add(total, integers);
      }
      int32_t sum = hn::GetLane(hn::SumOfLanes(DI(), total));
      for (; c < channels; ++c) {
        const auto integer = hn::GetLane(hn::NearestInt(splat(widen(from[c]) * inverse)));
        to[c] = static_cast<int8_t>(integer);
        sum += integer;
      }
      sums[p] = sum;
    }
  });
}

}  // namespace

const PackedTiles& packed_tiles_table() {
  static constexpr PackedTiles kTable = {&multiply_terms, &finish_rows, &largest, &quantize_pixels};
  return kTable;
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(packed_tiles_table);
const PackedTiles& packed_tiles() { return HWY_DYNAMIC_DISPATCH(packed_tiles_table)(); }
}  // namespace brrr::cpu
#endif
