#include <algorithm>
#include <cstring>

#include "backend/cpu/products/gemm_int8.h"
#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/products/gemm_int8_kernels.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
// After foreach_target:
#include "backend/cpu/products/gemm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

/// Four rows of 16 int8 become 16 columns of four.
HWY_INLINE void quad_rows(const int8_t* from, int64_t ld, int8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  for (int j = 0; j < kTileRows; ++j) {
    for (int i = 0; i < 4; ++i) to[4 * j + i] = from[i * ld + j];
  }
#else
  const hn::Full128<int8_t> d;
  const hn::Full128<int16_t> d16;
  const auto row = [&](int i) HWY_ATTR { return hn::LoadU(d, from + i * ld); };
  const auto r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3);
  const auto low01 = hn::BitCast(d16, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(d16, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(d16, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(d16, hn::InterleaveUpper(d, r2, r3));
  auto* words = reinterpret_cast<int16_t*>(to);
  hn::StoreU(hn::InterleaveLower(d16, low01, low23), d16, words);
  hn::StoreU(hn::InterleaveUpper(d16, low01, low23), d16, words + 8);
  hn::StoreU(hn::InterleaveLower(d16, high01, high23), d16, words + 16);
  hn::StoreU(hn::InterleaveUpper(d16, high01, high23), d16, words + 24);
#endif
}

using Tile = int8_t[kTileRows * kTileInt8];

/// Rows of `to` are to_ld apart; where the matrix ends they are zero.
void copy_padded(const int8_t* from, int64_t ld, int64_t rows, int64_t cols, int64_t to_ld,
                 Tile& to) {
  if (rows * to_ld < kTileRows * kTileInt8 || cols < to_ld) std::memset(to, 0, sizeof(to));
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(to + i * to_ld, from + i * ld, static_cast<size_t>(cols));
}

/// 16 lanes x 64 terms from memory with terms side by side or with lanes side by side.
template <bool kQuads>
HWY_INLINE void make_tile(const int8_t* from, int64_t ld, bool lanes_adjoin, int64_t lanes,
                          int64_t terms, void* tile) {
  alignas(64) Tile space, quads;
  auto* out = static_cast<int8_t*>(tile);
  const auto transpose = [&](const int8_t* words) HWY_ATTR {
    transpose_tile(reinterpret_cast<const uint16_t*>(words), kTileInt8 / 2,
                   reinterpret_cast<uint16_t*>(out));
  };
  if (!lanes_adjoin) {
    copy_padded(from, ld, lanes, terms, kTileInt8, space);
    if (kQuads) return transpose(space);
    std::memcpy(out, space, sizeof(space));
    return;
  }
  if (lanes < kTileRows || terms < kTileInt8) {
    copy_padded(from, ld, terms, lanes, kTileRows, space);
    from = space;
    ld = kTileRows;
  }
  for (int64_t k = 0; k < kTileInt8; k += 4)
    quad_rows(from + k * ld, ld, (kQuads ? out : quads) + k * kTileRows);
  if (!kQuads) transpose(quads);
}

void left_tile(const int8_t* from, int64_t ld, bool trans, int64_t rows, int64_t terms,
               void* tile) {
  make_tile<false>(from, ld, trans, rows, terms, tile);
}
void right_tile(const int8_t* from, int64_t ld, bool trans, int64_t columns, int64_t terms,
                void* tile) {
  make_tile<true>(from, ld, trans, columns, terms, tile);
}

#if HWY_TARGET != HWY_SCALAR && HWY_ARCH_X86

using DI16 = hn::ScalableTag<int16_t>;
using DI32 = hn::ScalableTag<int32_t>;
using VI16 = hn::Vec<DI16>;
using VI32 = hn::Vec<DI32>;

/// sum + a0 b0 + a1 b1 in each word of 32 bits, as VPMADDWD does it.
HWY_INLINE VI32 add_pairs(VI32 sum, VI16 a, VI16 b) {
  VI32 none = hn::Zero(DI32());
  return hn::ReorderWidenMulAccumulate(DI32(), a, b, sum, none);
}
HWY_INLINE VI32 load_sums(const int32_t* p) { return hn::LoadU(DI32(), p); }
HWY_INLINE VI16 broadcast_pair(const int16_t* pair) {
  int32_t word;
  std::memcpy(&word, pair, sizeof(word));
  return hn::BitCast(DI16(), hn::Set(DI32(), word));
}

/// The quads of a tile as pairs of 16 bits: terms 0 and 2 of each in `even`, 1 and 3 in `odd`.
struct WideTile {
  alignas(64) int16_t even[kTileRows * 32], odd[kTileRows * 32];

  HWY_INLINE void widen(const uint8_t* tile, int64_t stride) {
    const DI16 d;
    for (int r = 0; r < kTileRows; ++r) {
      for (int i = 0; i < 32; i += static_cast<int>(hn::Lanes(d))) {
        const auto bytes =
            hn::BitCast(d, hn::LoadU(hn::Repartition<uint8_t, DI16>(), tile + r * stride + 2 * i));
        hn::Store(hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes)), d, even + 32 * r + i);
        hn::Store(hn::ShiftRight<8>(bytes), d, odd + 32 * r + i);
      }
    }
  }
};

void dot(int32_t* sums, const uint8_t* a, int64_t a_stride, const uint8_t* b, int64_t b_stride) {
  // kRows x kNv sums, kNv x 2 vectors of B and one of A: of 16 registers (32 with AVX-512).
  constexpr int kNv = kWidth >= 16 ? 1 : 2, kRows = kWidth >= 16 ? 16 : 4;
  WideTile wide_a, wide_b;
  wide_a.widen(a, a_stride);
  wide_b.widen(b, b_stride);
  for (int j = 0; j < 16; j += kNv * kWidth) {
    for (int m = 0; m < kTileRows; m += kRows) {
      VI32 c[kRows][kNv];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kNv; ++v) c[r][v] = load_sums(sums + 16 * (m + r) + j + v * kWidth);
      }
      for (int k = 0; k < 16; ++k) {
        VI16 even[kNv], odd[kNv];
#pragma GCC unroll 2
        for (int v = 0; v < kNv; ++v) {
          even[v] = hn::LoadU(DI16(), wide_b.even + 32 * k + 2 * (j + v * kWidth));
          odd[v] = hn::LoadU(DI16(), wide_b.odd + 32 * k + 2 * (j + v * kWidth));
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const VI16 a_even = broadcast_pair(wide_a.even + 32 * (m + r) + 2 * k);
          const VI16 a_odd = broadcast_pair(wide_a.odd + 32 * (m + r) + 2 * k);
#pragma GCC unroll 2
          for (int v = 0; v < kNv; ++v)
            c[r][v] = add_pairs(add_pairs(c[r][v], a_even, even[v]), a_odd, odd[v]);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kNv; ++v)
          hn::StoreU(c[r][v], DI32(), sums + 16 * (m + r) + j + v * kWidth);
      }
    }
  }
}

/// One product of k numbers side by side with kColumns rows of B.
template <int kColumns>
HWY_INLINE void row_dots(const Int8Row& r, int64_t j) {
  const DI16 d;
  const hn::Rebind<int8_t, DI16> half;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int8_t* b = r.b + j * r.ldb;
  VI32 sums[kColumns];
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) sums[c] = hn::Zero(DI32());
  int64_t k = 0;
  for (; k + lanes <= r.k; k += lanes) {
    const VI16 a = hn::PromoteTo(d, hn::LoadU(half, r.a + k));
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c)
      sums[c] = add_pairs(sums[c], a, hn::PromoteTo(d, hn::LoadU(half, b + c * r.ldb + k)));
  }
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) {
    int32_t sum = hn::GetLane(hn::SumOfLanes(DI32(), sums[c]));
    for (int64_t i = k; i < r.k; ++i) sum += r.a[i] * b[c * r.ldb + i];
    r.sums[j + c] = sum;
  }
}

/// kNv vectors of columns of B as it lies, two terms at a time.
template <int kNv>
HWY_INLINE void row_columns(const Int8Row& r, int64_t j) {
  const DI32 d;
  const hn::Rebind<int8_t, DI32> quarter;
  const int8_t* b = r.b + j;
  VI32 sums[kNv];
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) sums[v] = hn::Zero(d);
  for (int64_t k = 0; k < r.k; k += 2, b += 2 * r.ldb) {
    const bool pair = k + 1 < r.k;
    const auto low = static_cast<uint16_t>(r.a[k]);
    const auto high = static_cast<uint16_t>(pair ? r.a[k + 1] : 0);
    const VI16 a =
        hn::BitCast(DI16(), hn::Set(d, static_cast<int32_t>(low | uint32_t{high} << 16)));
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      const VI32 first = hn::PromoteTo(d, hn::LoadU(quarter, b + v * kWidth));
      const VI32 second =
          pair ? hn::PromoteTo(d, hn::LoadU(quarter, b + r.ldb + v * kWidth)) : hn::Zero(d);
      const VI32 both = hn::Or(hn::And(first, hn::Set(d, 0xffff)), hn::ShiftLeft<16>(second));
      sums[v] = add_pairs(sums[v], a, hn::BitCast(DI16(), both));
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) hn::StoreU(sums[v], d, r.sums + j + v * kWidth);
}

/// The first column that no vector took.
HWY_INLINE int64_t row_vectors(const Int8Row& r) {
  int64_t j = 0;
  if (r.trans_b) {
    for (; j + 4 <= r.cols; j += 4) row_dots<4>(r, j);
    for (; j < r.cols; ++j) row_dots<1>(r, j);
    return j;
  }
  for (; j + 4 * kWidth <= r.cols; j += 4 * kWidth) row_columns<4>(r, j);
  for (; j + kWidth <= r.cols; j += kWidth) row_columns<1>(r, j);
  return j;
}

#else

void dot(int32_t* sums, const uint8_t* a, int64_t a_stride, const uint8_t* b, int64_t b_stride) {
  for (int m = 0; m < kTileRows; ++m) {
    for (int k = 0; k < kTileInt8; ++k) {
      const int left = static_cast<int8_t>(a[m * a_stride + k]);
      for (int n = 0; n < kTileRows; ++n)
        sums[16 * m + n] += left * static_cast<int8_t>(b[k / 4 * b_stride + 4 * n + k % 4]);
    }
  }
}

HWY_INLINE int64_t row_vectors(const Int8Row&) { return 0; }

#endif

void row(const Int8Row& r) {
  const int64_t j0 = row_vectors(r);
  const int64_t down = r.trans_b ? 1 : r.ldb, right = r.trans_b ? r.ldb : 1;
  for (int64_t j = j0; j < r.cols; ++j) {
    int32_t sum = 0;
    for (int64_t k = 0; k < r.k; ++k) sum += r.a[k] * r.b[k * down + j * right];
    r.sums[j] = sum;
  }
}

}  // namespace

const Int8Kernels& int8_table() {
  static constexpr Int8Kernels kKernels = {&left_tile, &right_tile, &dot, &row};
  return kKernels;
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(int8_table);
const Int8Kernels& int8_kernels() { return HWY_DYNAMIC_DISPATCH(int8_table)(); }
}  // namespace brrr::cpu
#endif
