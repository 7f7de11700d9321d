#pragma once
// Blocks of products by the vector instructions that multiply several narrow terms at a time:
// VDPBF16PS (avx512_bf16) and VPDPBUSD (avx512_vnni), of operands that are packed as tiles
// (amx_tiles.h).

#include <cstdint>
#include <cstring>

#include "backend/cpu/products/amx_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace brrr::cpu {

/// Operands of a strip of C, `rows` rows x kCols tiles: c = a b, or c += a b. Distances in A and B
/// are in bytes, in C in 4-byte words.
struct StripOperands {
  const uint8_t* a = nullptr;      // the terms of a tile in row i begin at a + i * a_row ...
  int64_t a_row = 0, a_terms = 0;  // ... and the next tile of terms a_terms further
  const uint8_t* b = nullptr;      // right tiles, column by column b_col apart
  int64_t b_col = 0, b_terms = 0;
  int64_t count = 0;  // tiles of terms
  float* c = nullptr;
  int64_t ldc = 0;
  bool add = false;
  int64_t last_words = kTileRows;  // 4-byte words per lane in the last tile
  bool streams_b = false;          // B is read once and sequentially: prefetch far ahead
  int64_t rows = 8;                // 1 to RegisterTiles::kStripRows
};

/// A block of a narrow product: at most kNarrowLanes lanes of one operand times lanes of the other
/// that lie side by side and are read in place.
inline constexpr int64_t kNarrowLanes = 16;
struct NarrowOperands {
  const uint32_t* narrow = nullptr;  // [terms / 2, kNarrowLanes]: each word holds two bf16 terms
  const uint16_t* wide = nullptr;    // term k of lane j at wide[k * ld + j]
  int64_t ld = 0;
  int64_t terms = 0, lanes = 0;
  float* sums = nullptr;  // [rows, lanes], each rounded up to whole strips
  int64_t ld_sums = 0, rows = 0;
  bool add = false;
  bool wide_is_left = false;  // a product of two NaNs has the payload of its left factor
};

/// Whether a class multiplies strips instead of tiles.
template <class Tiles>
concept MultipliesStrips = requires {
  Tiles::kStripRows;
};

/// How many tiles of terms strips take before sums go to memory: arithmetic takes so long that
/// operands may come from the L2 cache, a tile ahead, and all that counts is to load and store the
/// sums seldom. And the cycles of the product of two tiles.
inline constexpr int64_t kStripBlockTiles = 24;
inline constexpr double kStripCycles = 256;

#if defined(__x86_64__)
#define BRRR_AVX512_DOTS target("avx512f,avx512bf16,avx512vnni")

/// Each sum grows by one pair of terms at a time, as VDPBF16PS does it.
struct PairProducts {
  static constexpr bool kInt8 = false;
  __attribute__((BRRR_AVX512_DOTS, always_inline)) static inline __m512i left(const uint8_t* four) {
    int32_t word;
    std::memcpy(&word, four, sizeof(word));
    return _mm512_set1_epi32(word);
  }
  __attribute__((BRRR_AVX512_DOTS, always_inline)) static inline void add(__m512i& sum, __m512i a,
                                                                          __m512i b) {
    sum = _mm512_castps_si512(_mm512_dpbf16_ps(
        _mm512_castsi512_ps(sum), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
  }
};

/// VPDPBUSD multiplies unsigned by signed numbers: A enters with 128 added to each number (its sign
/// bit flipped), and 128 times the sum of each of B's columns is taken off again. All modulo 2^32,
/// so exact wherever the result is.
struct QuadProducts {
  static constexpr bool kInt8 = true;
  __attribute__((BRRR_AVX512_DOTS, always_inline)) static inline __m512i offset() {
    return _mm512_set1_epi32(static_cast<int>(0x80808080u));
  }
  __attribute__((BRRR_AVX512_DOTS, always_inline)) static inline __m512i left(const uint8_t* four) {
    int32_t word;
    std::memcpy(&word, four, sizeof(word));
    return _mm512_xor_si512(_mm512_set1_epi32(word), offset());
  }
  __attribute__((BRRR_AVX512_DOTS, always_inline)) static inline void add(__m512i& sum, __m512i a,
                                                                          __m512i b) {
    sum = _mm512_dpbusd_epi32(sum, a, b);
  }
};

/// Sums stay in registers over all terms: 8 rows x 2 tiles of them take 16, beside two of B and one
/// of A, so 10 loads feed 16 instructions. There is one instantiation for each number of rows:
/// products of few rows, as in decoding, are bound by reading B, and padding would add arithmetic.
template <class Products>
class RegisterTiles {
 public:
  static constexpr int64_t kBlockTiles = kStripBlockTiles;
  static constexpr int kStripRows = 8;

  /// Multiplies a strip; kCols is 1 or 2.
  template <int kCols>
  static void strip(const StripOperands& s) {
    (s.streams_b ? strip_by_rows<kCols, true> : strip_by_rows<kCols, false>)(s);
  }

 private:
  /// How far ahead of its use a streamed B is prefetched into the L2 cache, in bytes. 4 KB is too
  /// short to hide the latency of memory; 16 KB and 32 KB are no faster.
  static constexpr int64_t kStreamAhead = 8192;

  template <int kCols, bool kStreamsB>
  static void strip_by_rows(const StripOperands& s) {
    static constexpr void (*kStrips[kStripRows])(const StripOperands&) = {
        &strip_of<kCols, 1, kStreamsB>, &strip_of<kCols, 2, kStreamsB>,
        &strip_of<kCols, 3, kStreamsB>, &strip_of<kCols, 4, kStreamsB>,
        &strip_of<kCols, 5, kStreamsB>, &strip_of<kCols, 6, kStreamsB>,
        &strip_of<kCols, 7, kStreamsB>, &strip_of<kCols, 8, kStreamsB>};
    kStrips[s.rows - 1](s);
  }

  template <int kCols, int kRows, bool kStreamsB>
  __attribute__((BRRR_AVX512_DOTS, noinline)) static void strip_of(const StripOperands& s) {
    __m512i c[kRows][kCols];
    [[maybe_unused]] __m512i excess[kCols];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < kCols; ++v) {
        c[m][v] =
            s.add ? _mm512_loadu_si512(s.c + m * s.ldc + v * kTileRows) : _mm512_setzero_si512();
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < kCols; ++v) excess[v] = _mm512_setzero_si512();
    const int64_t a_row = s.a_row, b_col = s.b_col;
    const uint8_t *a = s.a, *b = s.b;
    for (int64_t t = s.count; t > 0; --t) {
      const uint8_t *next_a = a + s.a_terms, *next_b = b + s.b_terms;
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) __builtin_prefetch(next_a + m * a_row, 0, 3);
      const uint8_t *top = a, *middle = a + 3 * a_row, *bottom = a + 6 * a_row;
      const int64_t words = t == 1 ? s.last_words : kTileRows;
      for (int64_t k = 0; k < words; ++k) {
        __m512i right[kCols];
#pragma GCC unroll 2
        for (int v = 0; v < kCols; ++v) {
          const int64_t at = k * kTileRowBytes + v * b_col;
          right[v] = _mm512_load_si512(b + at);
          __builtin_prefetch(next_b + at, 0, 3);
          if constexpr (kStreamsB) __builtin_prefetch(b + at + kStreamAhead, 0, 2);
          if constexpr (Products::kInt8) Products::add(excess[v], Products::offset(), right[v]);
        }
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          const uint8_t* row = (m < 3 ? top : m < 6 ? middle : bottom) + m % 3 * a_row;
          const __m512i left = Products::left(row + 4 * k);
#pragma GCC unroll 2
          for (int v = 0; v < kCols; ++v) Products::add(c[m][v], left, right[v]);
        }
      }
      a = next_a;
      b = next_b;
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < kCols; ++v) {
        if constexpr (Products::kInt8) c[m][v] = _mm512_sub_epi32(c[m][v], excess[v]);
        _mm512_storeu_si512(s.c + m * s.ldc + v * kTileRows, c[m][v]);
      }
    }
  }
};

#undef BRRR_AVX512_DOTS
#define BRRR_AVX512_PAIRS target("avx512f,avx512bw,avx512bf16")

/// Computes narrow bf16 products with VDPBF16PS, which adds one pair of terms to each sum at a
/// time.
class NarrowBlocks {
 public:
  static constexpr int64_t kLanes = 32;  // of a strip
  static constexpr int kRows = 8;

  static void run(const NarrowOperands& n) {
    for (int64_t lane = 0; lane < n.lanes; lane += kLanes)
      for (int64_t row = 0; row < n.rows; row += kRows) run_strip(n, row, lane);
  }

 private:
  static void run_strip(const NarrowOperands& n, int64_t row, int64_t lane) {
    const bool is_whole = n.lanes - lane >= kLanes;
    if (n.wide_is_left)
      (is_whole ? strip<true, true> : strip<false, true>)(n, row, lane);
    else
      (is_whole ? strip<true, false> : strip<false, false>)(n, row, lane);
  }
  template <bool kWhole>
  __attribute__((BRRR_AVX512_PAIRS, always_inline)) static inline __m512i load(const uint16_t* from,
                                                                               __mmask32 mask) {
    if constexpr (kWhole) return _mm512_loadu_si512(from);
    return _mm512_maskz_loadu_epi16(mask, from);
  }
  template <bool kWhole, bool kWideIsLeft>
  __attribute__((BRRR_AVX512_PAIRS, noinline)) static void strip(const NarrowOperands& n,
                                                                 int64_t row, int64_t lane) {
    constexpr int kHalves = 2;
    const __m512i order[] = {_mm512_load_si512(kPairsOfRows.order[0].data()),
                             _mm512_load_si512(kPairsOfRows.order[1].data())};
    const __mmask32 mask = kWhole ? ~__mmask32{0} : (__mmask32{1} << (n.lanes - lane)) - 1;
    float* const sums = n.sums + row * n.ld_sums + lane;
    __m512 c[kRows][kHalves];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < kHalves; ++v)
        c[m][v] = n.add ? _mm512_loadu_ps(sums + m * n.ld_sums + v * 16) : _mm512_setzero_ps();
    const uint16_t* wide = n.wide + lane;
    const uint32_t* narrow = n.narrow + row;
    for (int64_t k = 0; k < n.terms; k += 2, wide += 2 * n.ld, narrow += kNarrowLanes) {
      const __m512i even = load<kWhole>(wide, mask);
      const __m512i odd =
          k + 1 < n.terms ? load<kWhole>(wide + n.ld, mask) : _mm512_setzero_si512();
      if (row == 0) {  // the next block of terms
        __builtin_prefetch(wide + n.terms * n.ld, 0, 2);
        __builtin_prefetch(wide + (n.terms + 1) * n.ld, 0, 2);
      }
      __m512i right[kHalves];
#pragma GCC unroll 2
      for (int v = 0; v < kHalves; ++v) right[v] = _mm512_permutex2var_epi16(even, order[v], odd);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const auto terms =
            reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(narrow[m])));
#pragma GCC unroll 2
        for (int v = 0; v < kHalves; ++v) {
          const auto pairs = reinterpret_cast<__m512bh>(right[v]);
          c[m][v] = kWideIsLeft ? _mm512_dpbf16_ps(c[m][v], pairs, terms)
                                : _mm512_dpbf16_ps(c[m][v], terms, pairs);
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < kHalves; ++v) _mm512_storeu_ps(sums + m * n.ld_sums + v * 16, c[m][v]);
  }
};

#undef BRRR_AVX512_PAIRS
#endif

}  // namespace brrr::cpu
