// sin and cos on vectors of f32. Relative error against double below 3e-7 over the whole range
// (cpu_math_test); zeros, infinities and NaN as in libm.

#if defined(BRRR_TRIG_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BRRR_TRIG_INL_H
#undef BRRR_TRIG_INL_H
#else
#define BRRR_TRIG_INL_H
#endif

#include <cmath>

#include "backend/cpu/simd/vmath-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

inline float libm_sin(float x) { return std::sin(x); }
inline float libm_cos(float x) { return std::cos(x); }

constexpr float kLargeAngle = 65536.0f;

/// y, but exactly computed where |x| is large or x is no number: rare, and no inlined part of
/// loops.
template <float (*kExact)(float)>
HWY_NOINLINE VF with_large_angles(VF x, VF y) {
  float in[kLanes], out[kLanes];
  store(x, in);
  store(y, out);
  for (int64_t i = 0; i < kLanes; ++i)
    if (!(std::fabs(in[i]) <= kLargeAngle)) out[i] = kExact(in[i]);
  return load(out);
}

#if HWY_TARGET != HWY_SCALAR
/// x - m pi/2 for a whole number m.
HWY_INLINE VF without_turns(VF x, VF m) {
#if HWY_NATIVE_FMA
  // The first part has so few bits that the first difference is exact where x is nearly a multiple.
  VF r = hn::NegMulAdd(m, splat(1.57079637f), x);
  r = hn::NegMulAdd(m, splat(-4.37113883e-8f), r);
  return hn::NegMulAdd(m, splat(-1.71512451e-15f), r);
#else
  // In f64; the first part of pi/2 has 33 bits: its product with m is exact.
  constexpr double kFirst = 1.57079632673412561417e+00, kRest = 6.07710050650619224932e-11;
  const hn::RepartitionToWide<DF> wide;
  const hn::Half<DF> half;
  const auto reduce = [&](auto part, auto turns) BRRR_INLINE_BODY {
    const auto t = hn::PromoteTo(wide, turns);
    const auto r = hn::NegMulAdd(t, hn::Set(wide, kFirst), hn::PromoteTo(wide, part));
    return hn::DemoteTo(half, hn::NegMulAdd(t, hn::Set(wide, kRest), r));
  };
  return hn::Combine(DF(), reduce(hn::UpperHalf(half, x), hn::UpperHalf(half, m)),
                     reduce(hn::LowerHalf(half, x), hn::LowerHalf(half, m)));
#endif
}
#endif

/// kQuadrant 0: sin x, 1: cos x = sin(x + pi/2); kExact is the C library's, for what is too large.
template <int kQuadrant, float (*kExact)(float)>
HWY_INLINE VF sine(VF x) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(DF(), kExact(hn::GetLane(x)));
#else
  // sin(x) = (-1)^n sin(x - n pi), cos(x) = -(-1)^n sin(x - (n + 1/2) pi): of an angle of at most
  // pi/2, for which one polynomial does (relative error 1.2e-8).
  constexpr bool kCosine = kQuadrant == 1;
  const VF n = hn::Round(hn::MulSub(x, splat(0.318309886f), splat(kCosine ? 0.5f : 0.0f)));
  const VF r = without_turns(x, hn::MulAdd(n, splat(2.0f), splat(kCosine ? 1.0f : 0.0f)));
  static constexpr float s[] = {-0.166666597f, 8.33306555e-3f, -1.98095397e-4f, 2.60563115e-6f};
  const VF r2 = hn::Mul(r, r);
  const DI di;
  const auto turns = hn::ConvertTo(di, n);
  const auto sign = hn::ShiftLeft<31>(kCosine ? hn::Not(turns) : turns);
  VF y = hn::Xor(hn::MulAdd(hn::Mul(r, r2), polynomial(r2, s), r), hn::BitCast(DF(), sign));
  if constexpr (!kCosine) y = hn::IfThenElse(hn::Eq(x, hn::Zero(DF())), x, y);  // -0
  if (!hn::AllTrue(DF(), hn::Le(hn::Abs(x), splat(kLargeAngle))))
    y = with_large_angles<kExact>(x, y);
  return y;
#endif
}

HWY_INLINE VF f_sin(VF x) { return sine<0, libm_sin>(x); }
HWY_INLINE VF f_cos(VF x) { return sine<1, libm_cos>(x); }

}  // namespace
}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BRRR_TRIG_INL_H
