#include "backend/cpu/gemm_amx_kernels.h"

#include <algorithm>
#include <bit>
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
    transpose_tile(from, ld, tile);
  } else if (lanes_adjoin) {
    pair_rows(from, ld, pairs);
    transpose_tile(pairs, kTileBf16, tile);
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

// How the sums of a row grow. begin() and end() enclose a group of at most 32 terms; add() takes an
// even and the following odd term of A (scalars) and of B (in each lane), all widened from bf16.

/// As TDPBF16PS does: even and odd terms of a group apart.
struct AmxSum {
  VF even, odd;
  HWY_INLINE void begin(VF) { even = odd = hn::Zero(DF()); }
  HWY_INLINE void add(float a0, float a1, VF b0, VF b1) {
    even = hn::MulAdd(splat(a0), b0, even);
    odd = hn::MulAdd(splat(a1), b1, odd);
  }
  HWY_INLINE VF end(VF before) const { return hn::Add(before, hn::Add(even, odd)); }
};

/// As VDPBF16PS does: odd, then even, straight into the sum.
struct EmulatedPairSum {
  VF sum;
  HWY_INLINE void begin(VF before) { sum = before; }
  HWY_INLINE void add(float a0, float a1, VF b0, VF b1) {
    sum = hn::MulAdd(splat(a0), b0, hn::MulAdd(splat(a1), b1, sum));
  }
  HWY_INLINE VF end(VF) const { return sum; }
};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
/// By VDPBF16PS.
struct PairSum {
  VF sum;
  HWY_INLINE void begin(VF before) { sum = before; }
  HWY_INLINE void add(float a0, float a1, VF b0, VF b1) {
    const DU du;
    const auto high = std::bit_cast<uint32_t>(a1), low = std::bit_cast<uint32_t>(a0) >> 16;
    const auto a = hn::Set(du, high | low);
    const auto b = hn::Or(hn::BitCast(du, b1), hn::ShiftRight<16>(hn::BitCast(du, b0)));
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  }
  HWY_INLINE VF end(VF) const { return sum; }
};
#endif

/// sums[j] += the terms [k0, k1) of at most 32, for kNv vectors of columns of B as it lies.
template <class Sum, int kNv, class Access>
HWY_INLINE void row_group(const AmxRow& r, int64_t k0, int64_t k1, int64_t j, Access access) {
  constexpr int kAhead = 256;  // columns fetched ahead in each of the rows
  const auto* b = reinterpret_cast<const Bf16*>(r.b) + k0 * r.ldb + j;
  float* const to = r.sums + j;
  Sum sums[kNv];
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) sums[v].begin(access.load(to + v * kLanes));
  int64_t k = k0;
  for (; k + 2 <= k1; k += 2, b += 2 * r.ldb) {
    const float a0 = float_from_bf16(r.a[k]), a1 = float_from_bf16(r.a[k + 1]);
    prefetch(b + kAhead);
    prefetch(b + r.ldb + kAhead);
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      sums[v].add(a0, a1, access.load(b + v * kLanes), access.load(b + r.ldb + v * kLanes));
    }
  }
  if (k < k1) {
    const float a0 = float_from_bf16(r.a[k]);
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      sums[v].add(a0, 0.0f, access.load(b + v * kLanes), hn::Zero(DF()));
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) {
    access.store(sums[v].end(access.load(to + v * kLanes)), to + v * kLanes);
  }
}

template <class Sum>
void row_plain(const AmxRow& r) {
  std::memset(r.sums, 0, static_cast<size_t>(r.cols) * sizeof(float));
  constexpr int kNv = std::clamp(32 / kWidth, 1, 4);  // a line of B
  for (int64_t k0 = 0; k0 < r.k; k0 += kTileBf16) {
    const int64_t k1 = std::min<int64_t>(r.k, k0 + kTileBf16);
    int64_t j = 0;
    for (; j + kNv * kLanes <= r.cols; j += kNv * kLanes) {
      row_group<Sum, kNv>(r, k0, k1, j, Whole{});
    }
    for (; j + kLanes <= r.cols; j += kLanes) row_group<Sum, 1>(r, k0, k1, j, Whole{});
    if (j < r.cols) row_group<Sum, 1>(r, k0, k1, j, Part{r.cols - j});
  }
}

/// kNv vectors of columns of a transposed B from column j on: transposed in registers, read once.
/// Of the last vector, only `lanes` columns exist.
template <class Sum, int kNv>
HWY_INLINE void row_trans_columns(const AmxRow& r, int64_t j, int64_t lanes) {
  const auto* b = reinterpret_cast<const Bf16*>(r.b) + j * r.ldb;
  VF sums[kNv];
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) sums[v] = hn::Zero(DF());
  for (int64_t k0 = 0; k0 < r.k; k0 += kTileBf16) {
    const int64_t k1 = std::min<int64_t>(r.k, k0 + kTileBf16);
    Sum parts[kNv];
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) parts[v].begin(sums[v]);
    int64_t k = k0;
#if HWY_TARGET != HWY_SCALAR
    for (; k + 8 <= k1 && lanes == kLanes; k += 8) {
#pragma GCC unroll 4
      for (int v = 0; v < kNv; ++v) {
        const Bf16* from = b + v * kLanes * r.ldb + k;
        prefetch_rows<kNv>(from, r.ldb, k, r.k);
        VF columns[8];
        transpose_terms<kWidth>(from, r.ldb, columns);
#pragma GCC unroll 4
        for (int i = 0; i < 8; i += 2) {
          parts[v].add(float_from_bf16(r.a[k + i]), float_from_bf16(r.a[k + i + 1]), columns[i],
                       columns[i + 1]);
        }
      }
    }
#endif
    for (; k < k1; k += 2) {
      const bool pair = k + 1 < k1;
#pragma GCC unroll 4
      for (int v = 0; v < kNv; ++v) {
        float even[kLanes] = {}, odd[kLanes] = {};
        for (int64_t i = 0; i < (kNv == 1 ? lanes : kLanes); ++i) {
          const Bf16* from = b + (v * kLanes + i) * r.ldb + k;
          even[i] = widen(from[0]);
          if (pair) odd[i] = widen(from[1]);
        }
        parts[v].add(float_from_bf16(r.a[k]), pair ? float_from_bf16(r.a[k + 1]) : 0.0f, load(even),
                     load(odd));
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) sums[v] = parts[v].end(sums[v]);
  }
  if (kNv == 1 && lanes < kLanes) return store_part(sums[0], r.sums + j, lanes);
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) store(sums[v], r.sums + j + v * kLanes);
}

template <class Sum>
void row_of(const AmxRow& r) {
  if (!r.trans_b) return row_plain<Sum>(r);
  int64_t j = 0;
  for (; j + 2 * kLanes <= r.cols; j += 2 * kLanes) row_trans_columns<Sum, 2>(r, j, kLanes);
  for (; j < r.cols; j += kLanes) {
    row_trans_columns<Sum, 1>(r, j, std::min(kLanes, r.cols - j));
  }
}

void row(const AmxRow& r) {
  if (r.rule == RowSums::kAmx) return row_of<AmxSum>(r);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if (r.rule == RowSums::kPairs) return row_of<PairSum>(r);
#endif
  row_of<EmulatedPairSum>(r);
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
