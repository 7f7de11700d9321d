// What the vector GEMM's kernels share, compiled once per instruction set: the size of a register
// tile, and reading several terms of several rows of a matrix as columns.

#if defined(BRRR_GEMM_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BRRR_GEMM_SIMD_INL_H
#undef BRRR_GEMM_SIMD_INL_H
#else
#define BRRR_GEMM_SIMD_INL_H
#endif

#include <cstring>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

// A tile keeps kMr x 2 accumulators in registers, beside two vectors of B and one element of A:
// 24 + 3 of 32 registers with AVX-512, 12 + 3 of 16 elsewhere (without fused multiply-add one more
// is needed for the product, so a tile is smaller).
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr int kMr = 12;
constexpr int kMaxAccumulators = 24;
#elif HWY_TARGET == HWY_AVX2
constexpr int kMr = 6;
constexpr int kMaxAccumulators = 12;
#else
constexpr int kMr = 4;
constexpr int kMaxAccumulators = 8;
#endif
constexpr int kWidth = static_cast<int>(kLanes);
constexpr int kNr = 2 * kWidth;

HWY_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
/// Into the L2 cache, which has room for more requests under way than L1: where memory is the
/// bound.
HWY_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

HWY_INLINE float widen(float x) { return x; }
HWY_INLINE float widen(Bf16 x) { return float_from_bf16(x.bits); }
HWY_INLINE float widen(F16 x) { return float_from_f16(x.bits); }

/// f(T{}) with the storage type of a dtype.
template <typename F>
HWY_INLINE void with_type(DType dtype, F&& f) {
  if (dtype == DType::bf16) {
    f(Bf16{});
  } else if (dtype == DType::f16) {
    f(F16{});
  } else {
    f(float{});
  }
}

/// Terms that lie in 16 bytes of a row.
template <typename T>
constexpr int kTerms = 16 / static_cast<int>(sizeof(T));

/// The two 16-bit numbers in each 32-bit word, widened.
template <class D, class VD>
HWY_INLINE void widen_pairs(D d, Bf16, VD pairs, VD* even, VD* odd) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, pairs);
  *even = hn::BitCast(d, hn::ShiftLeft<16>(bits));
  *odd = hn::BitCast(d, hn::And(bits, hn::Set(du, 0xffff0000u)));
}

#if HWY_TARGET != HWY_SCALAR
/// A vector of kCount / 4 blocks of 16 bytes: block i is from row 4 i of the source.
template <int kCount, class T>
HWY_INLINE auto load_blocks(const T* source, int64_t ld) {
  if constexpr (kCount == 4) {
    const hn::CappedTag<float, 4> d;
    const hn::Repartition<uint8_t, decltype(d)> bytes;
    return hn::BitCast(d, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(source)));
  } else {
    return hn::Combine(hn::CappedTag<float, kCount>(),
                       load_blocks<kCount / 2>(source + kCount / 2 * ld, ld),
                       load_blocks<kCount / 2>(source, ld));
  }
}

/// Four words of 32 bits (one f32 or two 16-bit numbers) of kCount rows, as columns. Transposing
/// 4 x 4 within each 128-bit block leaves the rows in order, since block i holds rows 4 i to
/// 4 i + 3.
template <int kCount, class T, class VD>
HWY_INLINE void transpose_words(const T* source, int64_t ld, VD* columns) {
  const hn::CappedTag<float, kCount> d;
  const hn::Repartition<double, decltype(d)> d2;
  const auto a0 = load_blocks<kCount>(source, ld), a1 = load_blocks<kCount>(source + ld, ld);
  const auto a2 = load_blocks<kCount>(source + 2 * ld, ld);
  const auto a3 = load_blocks<kCount>(source + 3 * ld, ld);
  const auto lo01 = hn::BitCast(d2, hn::InterleaveLower(d, a0, a1));
  const auto hi01 = hn::BitCast(d2, hn::InterleaveUpper(d, a0, a1));
  const auto lo23 = hn::BitCast(d2, hn::InterleaveLower(d, a2, a3));
  const auto hi23 = hn::BitCast(d2, hn::InterleaveUpper(d, a2, a3));
  columns[0] = hn::BitCast(d, hn::InterleaveLower(d2, lo01, lo23));
  columns[1] = hn::BitCast(d, hn::InterleaveUpper(d2, lo01, lo23));
  columns[2] = hn::BitCast(d, hn::InterleaveLower(d2, hi01, hi23));
  columns[3] = hn::BitCast(d, hn::InterleaveUpper(d2, hi01, hi23));
}

/// The same of f16.
template <class D, class VD>
HWY_INLINE void widen_pairs(D d, F16, VD pairs, VD* even, VD* odd) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> df16;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, pairs);
  const auto low = hn::BitCast(di, hn::And(bits, hn::Set(du, 0xffffu)));
  const auto high = hn::BitCast(di, hn::ShiftRight<16>(bits));
  *even = hn::PromoteTo(d, hn::BitCast(df16, hn::DemoteTo(d16, low)));
  *odd = hn::PromoteTo(d, hn::BitCast(df16, hn::DemoteTo(d16, high)));
#else
  constexpr int kCount = static_cast<int>(hn::MaxLanes(D()));
  uint16_t halves[2 * kCount];
  float floats[2][kCount];
  hn::StoreU(pairs, d, reinterpret_cast<float*>(halves));
  for (int i = 0; i < 2 * kCount; ++i) floats[i % 2][i / 2] = float_from_f16(halves[i]);
  *even = hn::LoadU(d, floats[0]);
  *odd = hn::LoadU(d, floats[1]);
#endif
}

/// kTerms<T> terms of kCount rows of the source, as columns of f32.
template <int kCount, class T, class VD>
HWY_INLINE void transpose_terms(const T* source, int64_t ld, VD* columns) {
  if constexpr (sizeof(T) == 4) {
    transpose_words<kCount>(source, ld, columns);
  } else {
    VD pairs[4];
    transpose_words<kCount>(source, ld, pairs);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      widen_pairs(hn::CappedTag<float, kCount>(), T{}, pairs[i], &columns[2 * i],
                  &columns[2 * i + 1]);
    }
  }
}
#endif

/// to[j][i] = from[i][j] for 16 x 16 words of 32 bits: two bf16 or four int8, the form in which a
/// right operand's tile holds its terms. Rows of `from` are ld 16-bit numbers apart.
HWY_INLINE void transpose_tile(const uint16_t* from, int64_t ld, uint16_t* to) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) std::memcpy(to + 32 * j + 2 * i, from + i * ld + 2 * j, 4);
  }
#else
  const DF d;
  auto* words = reinterpret_cast<float*>(to);
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += kWidth) {
#pragma GCC unroll 4
    for (int j = 0; j < 16; j += 4) {
      VF columns[4];
      transpose_words<kWidth>(from + i * ld + 2 * j, ld, columns);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) hn::StoreU(columns[c], d, words + 16 * (j + c) + i);
    }
  }
#endif
}

/// Rows 2 r and 2 r + 1 of 32 rows of 16 numbers of 16 bits become row r of 16 pairs: the same
/// form, from lanes that lie side by side.
HWY_INLINE void pair_rows(const uint16_t* from, int64_t ld, uint16_t* to) {
  const DU du;
  const D16 d16;
  for (int r = 0; r < 16; ++r) {
    const uint16_t *even = from + 2 * r * ld, *odd = even + ld;
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += kWidth) {
      const auto low = hn::PromoteTo(du, hn::LoadU(d16, even + i));
      const auto high = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, odd + i)));
      hn::StoreU(hn::Or(low, high), du, reinterpret_cast<uint32_t*>(to + 32 * r + 2 * i));
    }
  }
}

/// For a loop that reads kNv vectors of rows of B, 16 bytes of each per round, then goes to the
/// next such rows: fetches the same terms of those. `from` is at term k of the first row of one
/// vector. A line of each row lasts four rounds, so each round fetches those of a quarter of the
/// rows.
template <int kNv, typename T>
HWY_INLINE void prefetch_rows(const T* from, int64_t ld, int64_t k) {
  const T* ahead = from + (kNv * kLanes + k / kTerms<T> % 4 * (kLanes / 4)) * ld;
#pragma GCC unroll 4
  for (int r = 0; r < kWidth / 4; ++r) prefetch_far(ahead + r * ld);
}

}  // namespace
}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BRRR_GEMM_SIMD_INL_H
