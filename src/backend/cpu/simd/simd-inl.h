// Vectors of f32 for the kernels that are compiled once per instruction set: loads and stores of
// whole and partial vectors from f32, bf16 and f16, loops over rows, sums of lanes. A row's last,
// partial vector goes through the same arithmetic as whole ones, so no result depends on where a
// split or an alignment falls.

#if defined(BRRR_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BRRR_SIMD_INL_H
#undef BRRR_SIMD_INL_H
#else
#define BRRR_SIMD_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "backend/cpu/simd/simd_types.h"
#include "base/dtype.h"

/// Follows the parameters of a lambda that must be inlined for its accumulators to stay in
/// registers.
#ifndef BRRR_INLINE_BODY
#define BRRR_INLINE_BODY __attribute__((always_inline))
#endif

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using D16 = hn::Rebind<uint16_t, DF>;
using D8 = hn::Rebind<uint8_t, DF>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));
constexpr float kInfinity = std::numeric_limits<float>::infinity();

HWY_INLINE VF splat(float x) { return hn::Set(DF(), x); }

HWY_INLINE VF load(const float* p) { return hn::LoadU(DF(), p); }
HWY_INLINE void store(VF v, float* p) { hn::StoreU(v, DF(), p); }

HWY_INLINE VF load(const Bf16* p) {
  const auto bits = hn::PromoteTo(DU(), hn::LoadU(D16(), reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(DF(), hn::ShiftLeft<16>(bits));
}
/// The bits of the nearest bf16 in the low half of each lane; ties to even, as bf16_from_float
/// does.
HWY_INLINE hn::Vec<DU> bf16_bits(VF v) {
  const DU du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  const auto nan =
      hn::Gt(hn::And(hn::BitCast(DI(), v), hn::Set(DI(), 0x7fffffff)), hn::Set(DI(), 0x7f800000));
  return hn::ShiftRight<16>(
      hn::BitCast(du, hn::IfThenElse(nan, hn::BitCast(DI(), quiet), hn::BitCast(DI(), rounded))));
}
HWY_INLINE void store(VF v, Bf16* p) {
  hn::StoreU(hn::DemoteTo(D16(), hn::BitCast(DI(), bf16_bits(v))), D16(),
             reinterpret_cast<uint16_t*>(p));
}
/// v as it comes back from bf16.
HWY_INLINE VF round_to_bf16(VF v) { return hn::BitCast(DF(), hn::ShiftLeft<16>(bf16_bits(v))); }

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
HWY_INLINE VF load(const F16* p) {
  const hn::Rebind<hwy::float16_t, DF> d;
  return hn::PromoteTo(DF(), hn::LoadU(d, reinterpret_cast<const hwy::float16_t*>(p)));
}
HWY_INLINE void store(VF v, F16* p) {
  const hn::Rebind<hwy::float16_t, DF> d;
  hn::StoreU(hn::DemoteTo(d, v), d, reinterpret_cast<hwy::float16_t*>(p));
}
#else  // Highway's own conversion does not round to nearest even
HWY_INLINE VF load(const F16* p) {
  float buffer[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) buffer[i] = float_from_f16(p[i].bits);
  return load(buffer);
}
HWY_INLINE void store(VF v, F16* p) {
  float buffer[kLanes];
  store(v, buffer);
  for (int64_t i = 0; i < kLanes; ++i) p[i].bits = f16_from_float(buffer[i]);
}
#endif

/// The first n < kLanes elements; the other lanes are zero.
template <typename T>
HWY_INLINE VF load_part(const T* p, int64_t n) {
  T buffer[kLanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(n) * sizeof(T));
  return load(buffer);
}
template <typename T>
HWY_INLINE void store_part(VF v, T* p, int64_t n) {
  T buffer[kLanes];
  store(v, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(n) * sizeof(T));
}
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// Masked accesses of 32-bit elements do not fault beyond the mask.
HWY_INLINE VF load_part(const float* p, int64_t n) {
  return hn::MaskedLoad(hn::FirstN(DF(), static_cast<size_t>(n)), DF(), p);
}
HWY_INLINE void store_part(VF v, float* p, int64_t n) {
  hn::BlendedStore(v, hn::FirstN(DF(), static_cast<size_t>(n)), DF(), p);
}
#endif

/// How a loop body touches memory: a whole vector, or the first `count` lanes of one.
struct Whole {
  template <typename T>
  HWY_INLINE VF load(const T* p) const {
    return HWY_NAMESPACE::load(p);
  }
  template <typename T>
  HWY_INLINE VF load_or(const T* p, VF) const {
    return HWY_NAMESPACE::load(p);
  }
  template <typename T>
  HWY_INLINE void store(VF v, T* p) const {
    HWY_NAMESPACE::store(v, p);
  }
  /// Lanes beyond the end become zero.
  HWY_INLINE VF keep(VF v) const { return v; }
};
struct Part {
  int64_t count;
  template <typename T>
  HWY_INLINE VF load(const T* p) const {
    return load_part(p, count);
  }
  template <typename T>
  HWY_INLINE VF load_or(const T* p, VF other) const {
    return hn::IfThenElse(hn::FirstN(DF(), static_cast<size_t>(count)), load_part(p, count), other);
  }
  template <typename T>
  HWY_INLINE void store(VF v, T* p) const {
    store_part(v, p, count);
  }
  HWY_INLINE VF keep(VF v) const {
    return hn::IfThenElseZero(hn::FirstN(DF(), static_cast<size_t>(count)), v);
  }
};

/// body(access, i) for every vector of [0, n).
template <typename Body>
HWY_INLINE void each_vector(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(Whole{}, i);
  if (i < n) body(Part{n - i}, i);
}

/// body(access, i, slot) with slot cycling through 0..3, a constant after inlining: four
/// accumulators.
template <typename Body>
HWY_INLINE void each_vector_4(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    body(Whole{}, i, 0);
    body(Whole{}, i + kLanes, 1);
    body(Whole{}, i + 2 * kLanes, 2);
    body(Whole{}, i + 3 * kLanes, 3);
  }
  for (; i + kLanes <= n; i += kLanes) body(Whole{}, i, 0);
  if (i < n) body(Part{n - i}, i, 1);
}

HWY_INLINE float sum_lanes(VF v) { return hn::GetLane(hn::SumOfLanes(DF(), v)); }
HWY_INLINE float max_lanes(VF v) { return hn::GetLane(hn::MaxOfLanes(DF(), v)); }
HWY_INLINE float sum_4(const VF (&v)[4]) {
  return sum_lanes(hn::Add(hn::Add(v[0], v[1]), hn::Add(v[2], v[3])));
}
HWY_INLINE float max_4(const VF (&v)[4]) {
  return max_lanes(hn::Max(hn::Max(v[0], v[1]), hn::Max(v[2], v[3])));
}

}  // namespace
}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BRRR_SIMD_INL_H
