#pragma once
// Tiles (amx_tiles.h) on a processor without AMX. Tiles 0 to 3 are sums; 4 to 7 are operands, which
// are not copied: what they were loaded from must stay as it is until the last dot. `Product`
// multiplies two tiles: of bf16 in plain C++ as VDPBF16PS does it (each sum grows by one pair of
// terms at a time), of int8 in gemm_int8.h.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cpu/products/amx_tiles.h"

namespace brrr::cpu {

/// Intel's manual, volume 2, VDPBF16PS: the odd terms' product, then the even terms', each added
/// with one rounding; denormals are zero on the way in and out.
struct EmulatedPairs {
  using Sum = float;
  static void dot(float* sums, const uint8_t* a, int64_t a_stride, const uint8_t* b,
                  int64_t b_stride) {
    for (int m = 0; m < kTileRows; ++m) {
      for (int k = 0; k < kTileBf16 / 2; ++k) {
        for (int n = 0; n < 16; ++n) {
          float& sum = sums[16 * m + n];
          for (const int odd : {1, 0}) {
            sum = tile_fma(tile_bf16(a + m * a_stride, 2 * k + odd),
                           tile_bf16(b + k * b_stride, 2 * n + odd), sum);
          }
        }
      }
    }
  }
};

template <class Product>
class MemoryTiles {
 public:
  MemoryTiles() = default;
  MemoryTiles(const MemoryTiles&) = delete;
  MemoryTiles& operator=(const MemoryTiles&) = delete;

  template <int kTile>
  void zero() {
    static_assert(kTile < kSums);
    std::memset(sums_[kTile], 0, sizeof(sums_[kTile]));
  }
  template <int kTile>
  void load(const void* from, int64_t stride) {
    if constexpr (kTile < kSums) {
      for (int r = 0; r < kTileRows; ++r) {
        std::memcpy(sums_[kTile] + 16 * r, static_cast<const uint8_t*>(from) + r * stride,
                    kTileRowBytes);
      }
    } else {
      operands_[kTile - kSums] = {static_cast<const uint8_t*>(from), stride};
    }
  }
  template <int kTile>
  void store(void* to, int64_t stride) {
    static_assert(kTile < kSums);
    for (int r = 0; r < kTileRows; ++r) {
      std::memcpy(static_cast<uint8_t*>(to) + r * stride, sums_[kTile] + 16 * r, kTileRowBytes);
    }
  }
  template <int kSum, int kA, int kB>
  void dot_bf16() {
    static_assert(std::is_same_v<Sum, float>);
    dot<kSum, kA, kB>();
  }
  template <int kSum, int kA, int kB>
  void dot_int8() {
    static_assert(std::is_same_v<Sum, int32_t>);
    dot<kSum, kA, kB>();
  }

 private:
  using Sum = typename Product::Sum;
  static constexpr int kSums = 4;
  struct Operand {
    const uint8_t* from = nullptr;
    int64_t stride = 0;
  };

  template <int kSum, int kA, int kB>
  void dot() {
    const Operand &a = operands_[kA - kSums], &b = operands_[kB - kSums];
    Product::dot(sums_[kSum], a.from, a.stride, b.from, b.stride);
  }

  alignas(64) Sum sums_[kSums][kTileRows * 16] = {};
  Operand operands_[4];
};

}  // namespace brrr::cpu
