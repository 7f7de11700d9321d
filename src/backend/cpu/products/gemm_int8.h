#pragma once
// What gemm() needs for int8 operands where there is no AMX: products of tiles (amx_tiles.h), and
// packing into tiles and a product of one row for every processor. Sums are int32 and exact, so
// every way gives the same bits.

#include <cstdint>
#include <cstring>

#include "backend/cpu/products/amx_tiles.h"

namespace brrr::cpu {

/// One row of A times B.
struct Int8Row {
  const int8_t* a = nullptr;  // [k]
  const int8_t* b = nullptr;  // [k, cols], or [cols, k] when transposed
  int64_t ldb = 0, k = 0, cols = 0;
  bool trans_b = false;
  int32_t* sums = nullptr;  // [cols]
};

/// Compiled once per instruction set.
struct Int8Kernels {
  /// A tile of 16 rows of 64 terms from `rows` x `terms` (the rest is zero) of a matrix whose
  /// element (i, k) is at from[i * ld + k], or from[k * ld + i] when transposed.
  void (*left_tile)(const int8_t* from, int64_t ld, bool trans, int64_t rows, int64_t terms,
                    void* tile);
  /// The same of 16 columns of 64 terms as a right operand: element (j, k) at from[j * ld + k], or
  /// from[k * ld + j] when transposed.
  void (*right_tile)(const int8_t* from, int64_t ld, bool trans, int64_t columns, int64_t terms,
                     void* tile);
  /// sums [16, 16] += a b; rows of the tiles are `stride` bytes apart.
  void (*dot)(int32_t* sums, const uint8_t* a, int64_t a_stride, const uint8_t* b,
              int64_t b_stride);
  void (*row)(const Int8Row& row);
};

/// Those of the instruction set in use.
const Int8Kernels& int8_kernels();

/// For MemoryTiles: by multiplications of 16 bits.
struct WidenedQuads {
  using Sum = int32_t;
  static void dot(int32_t* sums, const uint8_t* a, int64_t a_stride, const uint8_t* b,
                  int64_t b_stride) {
    int8_kernels().dot(sums, a, a_stride, b, b_stride);
  }
};

/// What register_tiles.h does by VPDPBUSD, in plain C++.
struct EmulatedVnniQuads {
  using Sum = int32_t;
  static void dot(int32_t* sums, const uint8_t* a, int64_t a_stride, const uint8_t* b,
                  int64_t b_stride) {
    for (int n = 0; n < kTileRows; ++n) {
      uint32_t excess = 0, c[kTileRows] = {};
      for (int k = 0; k < kTileInt8; ++k) {
        const int right = static_cast<int8_t>(b[k / 4 * b_stride + 4 * n + k % 4]);
        excess += static_cast<uint32_t>(0x80 * right);
        for (int m = 0; m < kTileRows; ++m)
          c[m] += static_cast<uint32_t>((a[m * a_stride + k] ^ 0x80) * right);
      }
      for (int m = 0; m < kTileRows; ++m) {
        int32_t& sum = sums[16 * m + n];
        sum = static_cast<int32_t>(static_cast<uint32_t>(sum) + c[m] - excess);
      }
    }
  }
};

}  // namespace brrr::cpu
