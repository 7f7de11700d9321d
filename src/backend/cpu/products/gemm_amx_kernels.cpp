#include "backend/cpu/products/gemm_amx_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cpu/products/amx_tiles.h"
#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/products/gemm_amx_kernels.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
// After foreach_target:
#include "backend/cpu/products/gemm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

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

// How the sums of a row grow. begin() and end() enclose a group of terms; add() takes an even and
// the following odd term of A (scalars) and of B (in each lane), all widened from bf16. kWords: it
// takes pairs of bf16 as they are, too.

/// As TDPBF16PS does: even and odd terms of a group apart.
struct AmxSum {
  static constexpr bool kWords = false;
  static constexpr int64_t kGroup = kTileBf16;
  VF even, odd;
  HWY_INLINE void begin(VF) { even = odd = hn::Zero(DF()); }
  HWY_INLINE void add(float a0, float a1, VF b0, VF b1) {
    even = hn::MulAdd(splat(a0), b0, even);
    odd = hn::MulAdd(splat(a1), b1, odd);
  }
  HWY_INLINE VF end(VF before) const { return hn::Add(before, hn::Add(even, odd)); }
};

// As VDPBF16PS does: odd, then even, straight into the sum. Groups may be of any even size: so many
// rows of B are read side by side.
constexpr int64_t kPairGroup = 8;

struct EmulatedPairSum {
  static constexpr bool kWords = false;
  static constexpr int64_t kGroup = kPairGroup;
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
  static constexpr bool kWords = true;
  static constexpr int64_t kGroup = kPairGroup;
  using Words = hn::Vec<DU>;
  VF sum;
  HWY_INLINE void begin(VF before) { sum = before; }
  HWY_INLINE void add(Words a, Words b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  }
  HWY_INLINE void add(float a0, float a1, VF b0, VF b1) {
    const DU du;
    const auto high = std::bit_cast<uint32_t>(a1), low = std::bit_cast<uint32_t>(a0) >> 16;
    add(hn::Set(du, high | low),
        hn::Or(hn::BitCast(du, b1), hn::ShiftRight<16>(hn::BitCast(du, b0))));
  }
  HWY_INLINE VF end(VF) const { return sum; }

  /// Two terms of A, in each lane.
  static HWY_INLINE Words left(const uint16_t* two) {
    uint32_t word;
    std::memcpy(&word, two, sizeof(word));
    return hn::Set(DU(), word);
  }
  /// Two terms of 32 columns of B, which lie in two rows.
  static HWY_INLINE void add_rows(PairSum (&sums)[2], const uint16_t* a, const uint16_t* even,
                                  const uint16_t* odd) {
    const __m512i b0 = _mm512_loadu_si512(even), b1 = _mm512_loadu_si512(odd);
    const Words terms = left(a);
#pragma GCC unroll 2
    for (size_t half = 0; half < 2; ++half) {
      Words pairs;
      pairs.raw =
          _mm512_permutex2var_epi16(b0, _mm512_load_si512(kPairsOfRows.order[half].data()), b1);
      sums[half].add(terms, pairs);
    }
  }
  /// Two terms of a column of B in each word.
  HWY_INLINE void add_words(const uint16_t* a, VF words) { add(left(a), hn::BitCast(DU(), words)); }
};
#endif

/// Whether tiles continue with pairs of zeros behind term k1, which turn a sum of -0 into 0. Strips
/// of VDPBF16PS (PairSum, kWords) stop at the last pair.
template <class Sum>
bool ends_in_zeros(const AmxRow& r, int64_t k1) {
  const int64_t rest = r.k % kTileBf16;
  return !Sum::kWords && k1 == r.k && rest > 0 && rest < kTileBf16 - 1;
}

/// sums[j] += the terms [k0, k1) of a group, for kNv vectors of columns of B as it lies.
template <class Sum, int kNv, class Access>
HWY_INLINE void row_group(const AmxRow& r, int64_t k0, int64_t k1, int64_t j, Access access) {
  // Rows fetched ahead: runs of a row are short, and the hardware does not see what comes next.
  constexpr int64_t kAhead = std::max<int64_t>(16, Sum::kGroup);
  const uint16_t* b = r.b + k0 * r.ldb + j;
  float* const to = r.sums + j;
  Sum sums[kNv];
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) sums[v].begin(access.load(to + v * kLanes));
  int64_t k = k0;
  for (; k + 2 <= k1; k += 2, b += 2 * r.ldb) {
    prefetch_far(b + kAhead * r.ldb);
    prefetch_far(b + (kAhead + 1) * r.ldb);
    if constexpr (Sum::kWords && kNv == 2) {
      Sum::add_rows(sums, r.a + k, b, b + r.ldb);
      continue;
    }
    const float a0 = float_from_bf16(r.a[k]), a1 = float_from_bf16(r.a[k + 1]);
    const auto* wide = reinterpret_cast<const Bf16*>(b);
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      sums[v].add(a0, a1, access.load(wide + v * kLanes), access.load(wide + r.ldb + v * kLanes));
    }
  }
  if (k < k1) {
    const float a0 = float_from_bf16(r.a[k]);
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) {
      const VF b0 = access.load(reinterpret_cast<const Bf16*>(b) + v * kLanes);
      sums[v].add(a0, 0.0f, b0, hn::Zero(DF()));
    }
  }
  if (ends_in_zeros<Sum>(r, k1)) {
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) sums[v].add(0.0f, 0.0f, hn::Zero(DF()), hn::Zero(DF()));
  }
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) {
    access.store(sums[v].end(access.load(to + v * kLanes)), to + v * kLanes);
  }
}

template <class Sum>
void row_plain(const AmxRow& r) {
  if (!r.add) std::memset(r.sums, 0, static_cast<size_t>(r.cols) * sizeof(float));
  constexpr int kNv = std::clamp(32 / kWidth, 1, 4);  // a line of B
  for (int64_t k0 = 0; k0 < r.k; k0 += Sum::kGroup) {
    const int64_t k1 = std::min<int64_t>(r.k, k0 + Sum::kGroup);
    int64_t j = 0;
    for (; j + kNv * kLanes <= r.cols; j += kNv * kLanes) {
      row_group<Sum, kNv>(r, k0, k1, j, Whole{});
    }
    for (; j + kLanes <= r.cols; j += kLanes) row_group<Sum, 1>(r, k0, k1, j, Whole{});
    if (j < r.cols) row_group<Sum, 1>(r, k0, k1, j, Part{r.cols - j});
  }
}

#if HWY_TARGET != HWY_SCALAR
/// Terms k to k + 7 of kLanes columns of a transposed B, which begin at `from`.
template <class Sum>
HWY_INLINE void add_terms(Sum& sum, const AmxRow& r, int64_t k, const Bf16* from) {
  if constexpr (Sum::kWords) {
    VF words[4];
    transpose_words<kWidth>(from, r.ldb, words);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum.add_words(r.a + k + 2 * i, words[i]);
  } else {
    VF columns[8];
    transpose_terms<kWidth>(from, r.ldb, columns);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      sum.add(float_from_bf16(r.a[k + i]), float_from_bf16(r.a[k + i + 1]), columns[i],
              columns[i + 1]);
    }
  }
}
#endif

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
        prefetch_rows<kNv>(from, r.ldb, k);
        add_terms(parts[v], r, k, from);
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
    if (ends_in_zeros<Sum>(r, k1)) {
#pragma GCC unroll 4
      for (int v = 0; v < kNv; ++v) parts[v].add(0.0f, 0.0f, hn::Zero(DF()), hn::Zero(DF()));
    }
#pragma GCC unroll 4
    for (int v = 0; v < kNv; ++v) sums[v] = parts[v].end(sums[v]);
  }
  if (kNv == 1 && lanes < kLanes) return store_part(sums[0], r.sums + j, lanes);
#pragma GCC unroll 4
  for (int v = 0; v < kNv; ++v) store(sums[v], r.sums + j + v * kLanes);
}

/// The two terms of a column that lie in each word.
template <class Sum>
HWY_INLINE void add_pairs(Sum& sum, const uint16_t* a, VF words) {
  if constexpr (Sum::kWords) {
    sum.add_words(a, words);
  } else {
    const DU du;
    const auto both = hn::BitCast(du, words);
    sum.add(float_from_bf16(a[0]), float_from_bf16(a[1]),
            hn::BitCast(DF(), hn::ShiftLeft<16>(both)),
            hn::BitCast(DF(), hn::And(both, hn::Set(du, 0xffff0000u))));
  }
}

/// The terms of 16 columns of a panel from k on, which lie one after the other. `v...` are the
/// vectors of the columns.
template <class Sum, size_t... v>
HWY_INLINE void add_tile(Sum* sums, const uint16_t* a, const uint16_t* tile,
                         std::index_sequence<v...>) {
  constexpr int64_t kAhead = 2048;  // words
  Sum parts[] = {sums[v]...};
#pragma GCC unroll 4
  for (int64_t pair = 0; pair < 16; ++pair) {
    const uint16_t* from = tile + pair * 32;
    prefetch_far(from + kAhead);
    (add_pairs(parts[v], a + 2 * pair, load(reinterpret_cast<const float*>(from + v * 2 * kLanes))),
     ...);
  }
  ((sums[v] = parts[v]), ...);
}

/// B is read from end to end: 32 columns, all their terms, then the next. Any other order of lines,
/// two streams side by side even, costs a third of the memory's speed and more.
template <class Sum, size_t... v>
HWY_INLINE void row_panels(const AmxRow& r, std::index_sequence<v...> vectors) {
  constexpr size_t kNv = sizeof...(v);  // of 16 columns
  constexpr int64_t kTile = 512;        // words
  const uint16_t* tile = r.b;
  for (int64_t j = 0; j < r.cols; j += 32) {
    VF low[] = {(static_cast<void>(v), hn::Zero(DF()))...},
       high[] = {(static_cast<void>(v), hn::Zero(DF()))...};
    for (int64_t k = 0; k < r.k; k += kTileBf16, tile += 2 * kTile) {
      Sum left[kNv], right[kNv];
      (left[v].begin(low[v]), ...);
      (right[v].begin(high[v]), ...);
      add_tile(left, r.a + k, tile, vectors);
      add_tile(right, r.a + k, tile + kTile, vectors);
      ((low[v] = left[v].end(low[v])), ...);
      ((high[v] = right[v].end(high[v])), ...);
    }
    (store(low[v], r.sums + j + v * kLanes), ...);
    (store(high[v], r.sums + j + 16 + v * kLanes), ...);
  }
}

template <class Sum>
void row_of(const AmxRow& r) {
  if (r.panels) return row_panels<Sum>(r, std::make_index_sequence<16 / kLanes>());
  if (!r.trans_b) return row_plain<Sum>(r);
  int64_t j = 0;
  if constexpr (!Sum::kWords) {  // two chains of dependent sums, where they are the bound
    for (; j + 2 * kLanes <= r.cols; j += 2 * kLanes) row_trans_columns<Sum, 2>(r, j, kLanes);
  }
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
