#pragma once
// The eight tile registers of AMX as an object, and the same eight in plain C++. A kernel takes
// either as a template parameter: what packs, splits and handles edges is then tested on every
// machine, and only the instructions themselves need one that has them.
//
// A tile is 16 rows of 64 bytes. As the left operand its row is 32 bf16 (64 int8) terms of one row
// of A; as the right operand row r holds, for each of 16 columns, the terms 2r and 2r+1 (4r..4r+3)
// of B ("VNNI layout"); as the sum it is 16 x 16 f32 (int32). Fewer rows, columns or terms: pad
// with zeros.
//
// While an object lives, this thread's tiles are configured; only one at a time. Configuring costs
// about a hundred cycles: one object per task, not per micro-kernel. AmxTiles only where best_isa()
// is kAmx.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace brrr::cpu {

inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;
inline constexpr int kTileBf16 = 32;  // bf16 terms of a row
inline constexpr int kTileInt8 = 64;  // int8 terms of a row

/// Indices for VPERMT2W (_mm512_permutex2var_epi16) that interleave two rows of 32 numbers: pairs
/// of columns 0 to 15, then pairs of columns 16 to 31.
struct PairsOfRows {
  alignas(64) std::array<std::array<uint16_t, 32>, 2> order{};
  constexpr PairsOfRows() {
    for (size_t half = 0; half < 2; ++half)
      for (size_t j = 0; j < 32; ++j)
        order[half][j] = static_cast<uint16_t>(16 * half + j / 2 + j % 2 * 32);
  }
};
inline constexpr PairsOfRows kPairsOfRows;

#if defined(__x86_64__)
/// The instructions. As statements of our own instead of the compiler's intrinsics (which are the
/// same statements): g++ 12 declares neither all that a configuration reads nor that loads and
/// stores touch memory, and intrinsics need target attributes on every template above them.
class AmxTiles {
 public:
  AmxTiles() {
    alignas(64) const Config config;
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  ~AmxTiles() { asm volatile("tilerelease" ::: "memory"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  /// 16 rows, `stride` bytes apart.
  template <int kTile>
  void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(from), "r"(stride) : "memory");
  }
  /// The same for data that is not read again soon.
  template <int kTile>
  void load_once(const void* from, int64_t stride) {
    asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0"
                 :
                 : "i"(kTile), "r"(from), "r"(stride)
                 : "memory");
  }
  template <int kTile>
  void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(to), "r"(stride) : "memory");
  }
  /// sum += a b, bf16 products in f32.
  template <int kSum, int kA, int kB>
  void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }
  /// sum += a b, signed int8 products in int32.
  template <int kSum, int kA, int kB>
  void dot_int8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }
  /// sum += a b, products of signed int8 (a) and unsigned int8 (b) in int32.
  template <int kSum, int kA, int kB>
  void dot_int8_by_unsigned() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }

 private:
  struct Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static_assert(sizeof(Config) == 64);
};
#endif

/// How bf16 instructions treat numbers, whatever the rounding mode says.
inline float tile_flush(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}
/// Number i of a row of bf16.
inline float tile_bf16(const uint8_t* row, int i) {
  uint16_t bits;
  std::memcpy(&bits, row + 2 * i, sizeof(bits));
  return tile_flush(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
}
/// The product of two bf16 is exact in double. So is the sum, unless one of the two is too small to
/// change the other as f32 (they have 24 and 16 bits): one rounding.
inline float tile_fma(float a, float b, float sum) {
  return tile_flush(static_cast<float>(static_cast<double>(sum) +
                                       static_cast<double>(a) * static_cast<double>(b)));
}

/// What the instructions compute, bit for bit: Intel's manual, volume 2, TDPBF16PS (sums of even
/// and of odd terms by fused multiply-adds, then added to the tile; denormals are zero on the way
/// in and out), TDPBSSD and TDPBSUD.
class EmulatedTiles {
 public:
  EmulatedTiles() = default;
  EmulatedTiles(const EmulatedTiles&) = delete;
  EmulatedTiles& operator=(const EmulatedTiles&) = delete;

  template <int kTile>
  void zero() {
    std::memset(tiles_[kTile], 0, sizeof(Tile));
  }
  template <int kTile>
  void load(const void* from, int64_t stride) {
    for (int r = 0; r < kTileRows; ++r)
      std::memcpy(tiles_[kTile][r], static_cast<const uint8_t*>(from) + r * stride, kTileRowBytes);
  }
  template <int kTile>
  void load_once(const void* from, int64_t stride) {
    load<kTile>(from, stride);
  }
  template <int kTile>
  void store(void* to, int64_t stride) {
    for (int r = 0; r < kTileRows; ++r)
      std::memcpy(static_cast<uint8_t*>(to) + r * stride, tiles_[kTile][r], kTileRowBytes);
  }
  template <int kSum, int kA, int kB>
  void dot_bf16() {
    for (int m = 0; m < kTileRows; ++m) {
      const uint8_t* a = tiles_[kA][m];
      float even[16] = {}, odd[16] = {};
      for (int k = 0; k < kTileRows; ++k) {
        const uint8_t* b = tiles_[kB][k];
        const float a0 = tile_bf16(a, 2 * k), a1 = tile_bf16(a, 2 * k + 1);
        for (int n = 0; n < 16; ++n) {
          even[n] = tile_fma(a0, tile_bf16(b, 2 * n), even[n]);
          odd[n] = tile_fma(a1, tile_bf16(b, 2 * n + 1), odd[n]);
        }
      }
      auto* sum = reinterpret_cast<float*>(tiles_[kSum][m]);
      for (int n = 0; n < 16; ++n)
        sum[n] = tile_flush(tile_flush(sum[n]) + tile_flush(even[n] + odd[n]));
    }
  }
  template <int kSum, int kA, int kB>
  void dot_int8() {
    dot<int8_t, kSum, kA, kB>();
  }
  template <int kSum, int kA, int kB>
  void dot_int8_by_unsigned() {
    dot<uint8_t, kSum, kA, kB>();
  }

 private:
  template <typename B, int kSum, int kA, int kB>
  void dot() {
    for (int m = 0; m < kTileRows; ++m) {
      const auto* a = reinterpret_cast<const int8_t*>(tiles_[kA][m]);
      auto* sum = reinterpret_cast<int32_t*>(tiles_[kSum][m]);
      for (int k = 0; k < kTileRows; ++k) {
        const auto* b = reinterpret_cast<const B*>(tiles_[kB][k]);
        for (int n = 0; n < 16; ++n)
          for (int i = 0; i < 4; ++i)
            sum[n] = static_cast<int32_t>(static_cast<uint32_t>(sum[n]) +
                                          static_cast<uint32_t>(a[4 * k + i] * b[4 * n + i]));
      }
    }
  }

  using Tile = uint8_t[kTileRows][kTileRowBytes];

  alignas(64) Tile tiles_[8] = {};
};

}  // namespace brrr::cpu
