#include "backend/cpu/gemm_amx_kernels.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/amx_tiles.h"
#include "backend/cpu/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm_amx_kernels.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
// After foreach_target:
#include "backend/cpu/gemm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

constexpr int kPairs = kTileBf16 / 2;

/// to[j][i] = from[i][j] for 16 x 16 words of two terms; rows of `from` are ld terms apart.
HWY_INLINE void transpose_pairs(const uint16_t* from, int64_t ld, uint16_t* to) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < kPairs; ++j) std::memcpy(to + 32 * j + 2 * i, from + i * ld + 2 * j, 4);
  }
#else
  const DF d;
  auto* words = reinterpret_cast<float*>(to);
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += kWidth) {
#pragma GCC unroll 4
    for (int j = 0; j < kPairs; j += 4) {
      VF columns[4];
      transpose_words<kWidth>(from + i * ld + 2 * j, ld, columns);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) hn::StoreU(columns[c], d, words + 16 * (j + c) + i);
    }
  }
#endif
}

/// Rows 2 r and 2 r + 1 of 32 rows of 16 numbers become row r of 16 pairs.
HWY_INLINE void pair_rows(const uint16_t* from, int64_t ld, uint16_t* to) {
  const DU du;
  const D16 d16;
  for (int r = 0; r < kPairs; ++r) {
    const uint16_t *even = from + 2 * r * ld, *odd = even + ld;
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += kWidth) {
      const auto low = hn::PromoteTo(du, hn::LoadU(d16, even + i));
      const auto high = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, odd + i)));
      hn::StoreU(hn::Or(low, high), du, reinterpret_cast<uint32_t*>(to + 32 * r + 2 * i));
    }
  }
}

/// Where a tile reaches beyond the matrix: a copy with zeros, [rows, cols] of [full_rows, ld].
const uint16_t* padded(const uint16_t* from, int64_t ld, int64_t rows, int64_t cols,
                       int64_t padded_ld, uint16_t (&space)[kTileRows * kTileBf16]) {
  std::memset(space, 0, sizeof(space));
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(space + i * padded_ld, from + i * ld, static_cast<size_t>(cols) * sizeof(uint16_t));
  }
  return space;
}

/// 16 lanes x 32 terms from memory with terms side by side or with lanes side by side.
template <bool kPaired>
HWY_INLINE void make_tile(const uint16_t* from, int64_t ld, bool lanes_adjoin, int64_t lanes,
                          int64_t terms, uint16_t* tile) {
  alignas(64) uint16_t space[kTileRows * kTileBf16], pairs[kTileRows * kTileBf16];
  if (lanes < kTileRows || terms < kTileBf16) {
    if (lanes_adjoin) {
      from = padded(from, ld, terms, lanes, kTileRows, space);
      ld = kTileRows;
    } else {
      from = padded(from, ld, lanes, terms, kTileBf16, space);
      ld = kTileBf16;
    }
  }
  if (kPaired && lanes_adjoin) {
    pair_rows(from, ld, tile);
  } else if (kPaired) {
    transpose_pairs(from, ld, tile);
  } else if (lanes_adjoin) {
    pair_rows(from, ld, pairs);
    transpose_pairs(pairs, kTileBf16, tile);
  } else {
    for (int i = 0; i < kTileRows; ++i) std::memcpy(tile + 32 * i, from + i * ld, kTileRowBytes);
  }
}

void left_tile(const uint16_t* from, int64_t ld, bool trans, int64_t rows, int64_t terms,
               uint16_t* tile) {
  make_tile<false>(from, ld, trans, rows, terms, tile);
}
void right_tile(const uint16_t* from, int64_t ld, bool trans, int64_t columns, int64_t terms,
                uint16_t* tile) {
  make_tile<true>(from, ld, trans, columns, terms, tile);
}

void scale(float* values, int64_t ld, int64_t rows, int64_t cols, float alpha, const float* bias,
           const float* c, int64_t ldc) {
  const VF factor = splat(alpha);
  for (int64_t i = 0; i < rows; ++i) {
    each_vector(cols, [&](auto access, int64_t j) BRRR_INLINE_BODY {
      VF base = hn::Zero(DF());
      if (bias != nullptr) base = access.load(bias + j);
      if (c != nullptr) base = hn::Add(base, access.load(c + i * ldc + j));
      float* to = values + i * ld + j;
      access.store(hn::MulAdd(factor, access.load(to), base), to);
    });
  }
}

/// sums[j] += the terms [k0, k1) of at most 32, even and odd ones apart, for kNv vectors of columns
/// of B as it lies.
template <int kNv, class Access>
HWY_INLINE void row_group(const AmxRow& r, int64_t k0, int64_t k1, int64_t j, Access access) {
  constexpr int kAhead = 256;  // columns fetched ahead in each of the 32 rows
  const auto* b = reinterpret_cast<const Bf16*>(r.b) + k0 * r.ldb + j;
  VF even[kNv], odd[kNv];
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) even[v] = odd[v] = hn::Zero(DF());
  int64_t k = k0;
  for (; k + 2 <= k1; k += 2, b += 2 * r.ldb) {
    const VF a0 = splat(float_from_bf16(r.a[k])), a1 = splat(float_from_bf16(r.a[k + 1]));
    prefetch(b + kAhead);
    prefetch(b + r.ldb + kAhead);
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      even[v] = hn::MulAdd(a0, access.load(b + v * kLanes), even[v]);
      odd[v] = hn::MulAdd(a1, access.load(b + r.ldb + v * kLanes), odd[v]);
    }
  }
  if (k < k1) {
    const VF a0 = splat(float_from_bf16(r.a[k]));
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      even[v] = hn::MulAdd(a0, access.load(b + v * kLanes), even[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) {
    float* to = r.sums + j + v * kLanes;
    access.store(hn::Add(access.load(to), hn::Add(even[v], odd[v])), to);
  }
}

void row_plain(const AmxRow& r) {
  std::memset(r.sums, 0, static_cast<size_t>(r.cols) * sizeof(float));
  constexpr int kNv = std::max(1, 32 / kWidth);  // a line of B
  for (int64_t k0 = 0; k0 < r.k; k0 += kTileBf16) {
    const int64_t k1 = std::min<int64_t>(r.k, k0 + kTileBf16);
    int64_t j = 0;
    if constexpr (kNv <= 4) {
      for (; j + kNv * kLanes <= r.cols; j += kNv * kLanes) row_group<kNv>(r, k0, k1, j, Whole{});
    }
    for (; j + kLanes <= r.cols; j += kLanes) row_group<1>(r, k0, k1, j, Whole{});
    if (j < r.cols) row_group<1>(r, k0, k1, j, Part{r.cols - j});
  }
}

/// kNv vectors of columns of a transposed B from column j on: transposed in registers, read once.
template <int kNv>
HWY_INLINE void row_trans_columns(const AmxRow& r, int64_t j) {
  const auto* b = reinterpret_cast<const Bf16*>(r.b) + j * r.ldb;
  VF sums[kNv], even[kNv], odd[kNv];
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) sums[v] = even[v] = odd[v] = hn::Zero(DF());
  int64_t k = 0;
  const auto add_group = [&]() BRRR_INLINE_BODY {
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      sums[v] = hn::Add(sums[v], hn::Add(even[v], odd[v]));
      even[v] = odd[v] = hn::Zero(DF());
    }
  };
#if HWY_TARGET != HWY_SCALAR
  for (; k + 8 <= r.k; k += 8) {
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      const Bf16* from = b + v * kLanes * r.ldb + k;
      prefetch_rows<kNv>(from, r.ldb, k, r.k);
      VF columns[8];
      transpose_terms<kWidth>(from, r.ldb, columns);
#pragma GCC unroll 4
      for (int i = 0; i < 8; i += 2) {
        even[v] = hn::MulAdd(splat(float_from_bf16(r.a[k + i])), columns[i], even[v]);
        odd[v] = hn::MulAdd(splat(float_from_bf16(r.a[k + i + 1])), columns[i + 1], odd[v]);
      }
    }
    if ((k + 8) % kTileBf16 == 0) add_group();
  }
#endif
  for (; k < r.k; ++k) {
    const VF a = splat(float_from_bf16(r.a[k]));
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      float column[kLanes];
      for (int i = 0; i < kWidth; ++i) column[i] = widen(b[(v * kLanes + i) * r.ldb + k]);
      VF& sum = k % 2 == 0 ? even[v] : odd[v];
      sum = hn::MulAdd(a, load(column), sum);
    }
    if ((k + 1) % kTileBf16 == 0) add_group();
  }
  if (r.k % kTileBf16 != 0) add_group();
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) store(sums[v], r.sums + j + v * kLanes);
}

/// One column: the last few, which do not fill a vector.
HWY_INLINE float row_trans_column(const AmxRow& r, int64_t j) {
  float sum = 0;
  for (int64_t k0 = 0; k0 < r.k; k0 += kTileBf16) {
    VF even = hn::Zero(DF()), odd = even;
    const int64_t k1 = std::min<int64_t>(r.k, k0 + kTileBf16);
    for (int64_t k = k0; k < k1; ++k) {
      VF& part = k % 2 == 0 ? even : odd;
      part = hn::MulAdd(splat(float_from_bf16(r.a[k])), splat(float_from_bf16(r.b[j * r.ldb + k])),
                        part);
    }
    sum += hn::GetLane(hn::Add(even, odd));
  }
  return sum;
}

void row(const AmxRow& r) {
  if (!r.trans_b) return row_plain(r);
  int64_t j = 0;
  for (; j + 2 * kLanes <= r.cols; j += 2 * kLanes) row_trans_columns<2>(r, j);
  for (; j + kLanes <= r.cols; j += kLanes) row_trans_columns<1>(r, j);
  for (; j < r.cols; ++j) r.sums[j] = row_trans_column(r, j);
}

}  // namespace

const AmxKernels& amx() {
  static constexpr AmxKernels kKernels = {&left_tile, &right_tile, &scale, &row};
  return kKernels;
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(amx);
const AmxKernels& amx_kernels() { return HWY_DYNAMIC_DISPATCH(amx)(); }
}  // namespace brrr::cpu
#endif
