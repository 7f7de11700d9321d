// sin, cos, asin, acos and atan on vectors of f32. The relative error against double is below 3e-7
// for every argument, which cpu_math_test checks. Zeros, infinities and NaN give what libm gives.

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

constexpr float kHalfPi = 1.57079637f, kHalfPiRest = -4.37113883e-8f;

/// Returns asin(x) for 0 <= x <= 1/2, by the minimax polynomial of the Cephes library; x2 = x * x.
HWY_INLINE VF asin_small(VF x, VF x2) {
  static constexpr float c[] = {1.6666752422e-1f, 7.4953002686e-2f, 4.5470025998e-2f,
                                2.4181311049e-2f, 4.2163199048e-2f};
  return hn::MulAdd(hn::Mul(x, x2), polynomial(x2, c), x);
}

/// The common part of asin and acos. Above 1/2, asin(a) = pi/2 - 2 asin(sqrt((1 - a) / 2)).
struct ArcOfMagnitude {
  VF small;  // asin(a), or above 1/2 asin(sqrt((1 - a) / 2))
  hn::Mask<DF> is_large;
};
HWY_INLINE ArcOfMagnitude arc_of_magnitude(VF a) {
  const auto is_large = hn::Gt(a, splat(0.5f));
  const VF rest =
      hn::Mul(hn::Sub(splat(1.0f), a), splat(0.5f));  // negative above 1: the root is NaN
  const VF x2 = hn::IfThenElse(is_large, rest, hn::Mul(a, a));
  const VF x = hn::IfThenElse(is_large, hn::Sqrt(rest), a);
  return {asin_small(x, x2), is_large};
}

HWY_INLINE VF f_asin(VF x) {
  const ArcOfMagnitude arc = arc_of_magnitude(hn::Abs(x));
  const VF large =
      hn::Add(hn::NegMulAdd(splat(2.0f), arc.small, splat(kHalfPiRest)), splat(kHalfPi));
  return hn::CopySign(hn::IfThenElse(arc.is_large, large, arc.small), x);
}

HWY_INLINE VF f_acos(VF x) {
  const ArcOfMagnitude arc = arc_of_magnitude(hn::Abs(x));
  const auto is_negative = hn::Lt(x, hn::Zero(DF()));
  const VF twice = hn::Add(arc.small, arc.small);
  const VF from_pi = hn::Add(hn::Sub(splat(2 * kHalfPiRest), twice), splat(2 * kHalfPi));
  const VF signed_small = hn::CopySign(arc.small, x);
  const VF from_half_pi = hn::Add(hn::Sub(splat(kHalfPiRest), signed_small), splat(kHalfPi));
  return hn::IfThenElse(arc.is_large, hn::IfThenElse(is_negative, from_pi, twice), from_half_pi);
}

/// Reduces the argument by atan(x) = pi/4 + atan((x - 1) / (x + 1)) above tan(pi/8) and by
/// atan(x) = pi/2 - atan(1 / x) above tan(3 pi/8), then applies the minimax polynomial of the
/// Cephes library.
HWY_INLINE VF f_atan(VF x) {
  static constexpr float c[] = {-3.33329491539e-1f, 1.99777106478e-1f, -1.38776856032e-1f,
                                8.05374449538e-2f};
  const VF a = hn::Abs(x), one = splat(1.0f), zero = hn::Zero(DF());
  const auto is_large = hn::Gt(a, splat(2.41421356f)), is_middle = hn::Gt(a, splat(0.414213562f));
  const VF over =
      hn::IfThenElse(is_large, splat(-1.0f), hn::IfThenElse(is_middle, hn::Sub(a, one), a));
  const VF under = hn::IfThenElse(is_large, a, hn::IfThenElse(is_middle, hn::Add(a, one), one));
  const VF t = hn::Div(over, under), t2 = hn::Mul(t, t);
  const VF turn =
      hn::IfThenElse(is_large, splat(kHalfPi), hn::IfThenElse(is_middle, splat(kHalfPi / 2), zero));
  const VF rest = hn::IfThenElse(is_large, splat(kHalfPiRest),
                                 hn::IfThenElse(is_middle, splat(kHalfPiRest / 2), zero));
  const VF small = hn::MulAdd(hn::Mul(t, t2), polynomial(t2, c), t);
  return hn::CopySign(hn::Add(hn::Add(small, rest), turn), x);
}

}  // namespace
}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BRRR_TRIG_INL_H
