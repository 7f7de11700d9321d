#pragma once
// Blocks of products by the vector instructions that multiply several narrow terms at a time:
// VDPBF16PS (avx512_bf16) and VPDPBUSD (avx512_vnni). Operands are packed as tiles (amx_tiles.h),
// sums stay in registers over all terms of a block: 12 rows x 32 columns of them take 24 of the 32
// registers, beside two of B and one of A, so 14 loads feed 24 instructions.

#include <cstdint>
#include <cstring>

#include "backend/cpu/amx_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define BRRR_AVX512_DOTS target("avx512f,avx512bf16,avx512vnni")

namespace brrr::cpu {

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

template <class Products>
class RegisterTiles {
 public:
  static constexpr bool kWholeBlocks = true;
  /// Arithmetic takes so long here that operands may come from the L2 cache, a tile ahead: all that
  /// counts is to load and store the sums seldom.
  static constexpr int64_t kBlockTiles = 24;

  /// sums (32 x 32, rows of 32 words) += `count` tiles of terms; kRows x kCols tiles of it exist.
  /// Panels are two tiles side by side.
  template <int kRows, int kCols>
  static void block(const uint16_t* a, const uint16_t* b, int64_t count, float* sums, bool first) {
    const Block all{reinterpret_cast<const uint8_t*>(a), reinterpret_cast<const uint8_t*>(b), count,
                    sums, first};
    if constexpr (kRows == 2) {
      strip<0, 12, kCols>(all);
      strip<12, 12, kCols>(all);
      strip<24, 8, kCols>(all);
    } else {
      strip<0, 8, kCols>(all);
      strip<8, 8, kCols>(all);
    }
  }

 private:
  static constexpr int64_t kTileBytes = int64_t{kTileRows} * kTileRowBytes;
  static constexpr int64_t row_at(int64_t row) {
    return row / kTileRows * kTileBytes + row % kTileRows * kTileRowBytes;
  }
  struct Block {
    const uint8_t *a, *b;
    int64_t count;
    float* sums;
    bool first;
  };

  template <int kFirst, int kHeight, int kCols>
  __attribute__((BRRR_AVX512_DOTS, noinline)) static void strip(const Block& block) {
    constexpr int64_t kWidth = 2 * kTileRows;
    float* const sums = block.sums + kFirst * kWidth;
    __m512i c[kHeight][kCols];
    [[maybe_unused]] __m512i excess[kCols];
#pragma GCC unroll 16
    for (int m = 0; m < kHeight; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < kCols; ++v) {
        c[m][v] = block.first ? _mm512_setzero_si512()
                              : _mm512_load_si512(sums + m * kWidth + v * kTileRows);
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < kCols; ++v) excess[v] = _mm512_setzero_si512();
    const uint8_t *a = block.a, *b = block.b;
    for (int64_t t = block.count; t > 0; --t) {
      const uint8_t *next_a = a + 2 * kTileBytes, *next_b = b + 2 * kTileBytes;
#pragma GCC unroll 16
      for (int m = 0; m < kHeight; ++m) __builtin_prefetch(next_a + row_at(kFirst + m), 0, 3);
      for (int k = 0; k < kTileRows; ++k) {
        __m512i right[kCols];
#pragma GCC unroll 2
        for (int v = 0; v < kCols; ++v) {
          const int64_t at = k * kTileRowBytes + v * kTileBytes;
          right[v] = _mm512_load_si512(b + at);
          __builtin_prefetch(next_b + at, 0, 3);
          if constexpr (Products::kInt8) Products::add(excess[v], Products::offset(), right[v]);
        }
#pragma GCC unroll 16
        for (int m = 0; m < kHeight; ++m) {
          const __m512i left = Products::left(a + row_at(kFirst + m) + 4 * k);
#pragma GCC unroll 2
          for (int v = 0; v < kCols; ++v) Products::add(c[m][v], left, right[v]);
        }
      }
      a = next_a;
      b = next_b;
    }
#pragma GCC unroll 16
    for (int m = 0; m < kHeight; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < kCols; ++v) {
        if constexpr (Products::kInt8) c[m][v] = _mm512_sub_epi32(c[m][v], excess[v]);
        _mm512_store_si512(sums + m * kWidth + v * kTileRows, c[m][v]);
      }
    }
  }
};

}  // namespace brrr::cpu

#undef BRRR_AVX512_DOTS
#endif
