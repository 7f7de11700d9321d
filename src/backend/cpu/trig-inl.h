// sin and cos on vectors of f32. Relative error against double below 3e-7 over the whole range
// (cpu_math_test); zeros, infinities and NaN as in libm.

#if defined(BRRR_TRIG_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BRRR_TRIG_INL_H
#undef BRRR_TRIG_INL_H
#else
#define BRRR_TRIG_INL_H
#endif

#include <cmath>

#include "backend/cpu/vmath-inl.h"

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

/// kQuadrant 0: sin x, 1: cos x = sin(x + pi/2); kExact is the C library's, for what is too large.
template <int kQuadrant, float (*kExact)(float)>
HWY_INLINE VF sine(VF x) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(DF(), kExact(hn::GetLane(x)));
#else
  // x = n pi/2 + r. The difference is made in f64, so that r keeps its digits where x is nearly a
  // multiple; the first part of pi/2 has 33 bits: its product with n is exact.
  constexpr double kFirst = 1.57079632673412561417e+00, kRest = 6.07710050650619224932e-11;
  const hn::RepartitionToWide<DF> wide;
  const hn::Half<DF> half;
  const VF n = hn::Round(hn::Mul(x, splat(0.636619772f)));
  const auto reduce = [&](auto part, auto turns) BRRR_INLINE_BODY {
    const auto t = hn::PromoteTo(wide, turns);
    const auto r = hn::NegMulAdd(t, hn::Set(wide, kFirst), hn::PromoteTo(wide, part));
    return hn::DemoteTo(half, hn::NegMulAdd(t, hn::Set(wide, kRest), r));
  };
  const VF r = hn::Combine(DF(), reduce(hn::UpperHalf(half, x), hn::UpperHalf(half, n)),
                           reduce(hn::LowerHalf(half, x), hn::LowerHalf(half, n)));
  static constexpr float s[] = {-1.6666654611e-1f, 8.3321608736e-3f, -1.9515295891e-4f};
  static constexpr float c[] = {4.166664568298827e-2f, -1.388731625493765e-3f,
                                2.443315711809948e-5f};
  const VF r2 = hn::Mul(r, r);
  const VF sin_r = hn::MulAdd(hn::Mul(r, r2), polynomial(r2, s), r);
  const VF cos_r =
      hn::MulAdd(hn::Mul(r2, r2), polynomial(r2, c), hn::NegMulAdd(r2, splat(0.5f), splat(1.0f)));
  const DI di;
  const auto quadrant = hn::Add(hn::ConvertTo(di, n), hn::Set(di, kQuadrant));
  const auto odd = hn::Eq(hn::And(quadrant, hn::Set(di, 1)), hn::Set(di, 1));
  const auto sign = hn::ShiftLeft<30>(hn::And(quadrant, hn::Set(di, 2)));
  VF y = hn::Xor(hn::IfThenElse(hn::RebindMask(DF(), odd), cos_r, sin_r), hn::BitCast(DF(), sign));
  if constexpr (kQuadrant == 0) y = hn::IfThenElse(hn::Eq(x, hn::Zero(DF())), x, y);  // -0
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
