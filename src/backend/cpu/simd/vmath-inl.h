// exp, log, tanh, erf, the logistic function and the normal distribution on vectors of f32.
// Relative error against double below 3e-7 over the whole range (cpu_math_test); infinities, NaN,
// zeros and subnormal arguments as in libm. Polynomials are minimax fits made for these intervals.

#if defined(BRRR_VMATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BRRR_VMATH_INL_H
#undef BRRR_VMATH_INL_H
#else
#define BRRR_VMATH_INL_H
#endif

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

/// c[0] + c[1] x + ... by Horner's rule.
template <size_t kFirst = 0, size_t kN>
HWY_INLINE VF polynomial(VF x, const float (&c)[kN]) {
  if constexpr (kFirst + 1 == kN) {
    return splat(c[kFirst]);
  } else {
    return hn::MulAdd(polynomial<kFirst + 1>(x, c), x, splat(c[kFirst]));
  }
}

/// x held to [low, high]; NaN stays NaN.
HWY_INLINE VF clamp(VF x, float low, float high) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  // minps and maxps return the second operand when either is NaN.
  return hn::Min(splat(high), hn::Max(splat(low), x));
#else
  const VF a = hn::IfThenElse(hn::Lt(x, splat(low)), splat(low), x);
  return hn::IfThenElse(hn::Gt(a, splat(high)), splat(high), a);
#endif
}

constexpr float kLog2E = 1.44269504f;
// ln 2 in two parts; the first has trailing zeros, so its product with a small integer is exact.
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

/// x = n ln 2 + r, |r| <= ln 2 / 2.
struct Reduced {
  VF n, r;
};
HWY_INLINE Reduced reduce_ln2(VF x) {
  const VF n = hn::Round(hn::Mul(x, splat(kLog2E)));
  const VF r = hn::NegMulAdd(n, splat(kLn2Low), hn::NegMulAdd(n, splat(kLn2High), x));
  return {n, r};
}

/// e^r for |r| <= ln 2 / 2.
HWY_INLINE VF exp_small(VF r) {
  static constexpr float c[] = {0.499999934f, 0.166665206f, 0.041668388f, 0.00836871688f,
                                0.00138145985f};
  return hn::MulAdd(hn::Mul(r, r), polynomial(r, c), hn::Add(r, splat(1.0f)));
}

/// 2^n for an integer n in [-126, 127].
HWY_INLINE VF power_of_two(VF n) {
  const auto k = hn::Add(hn::ConvertTo(DI(), n), hn::Set(DI(), 127));
  return hn::BitCast(DF(), hn::ShiftLeft<23>(k));
}

/// y 2^n for |n| <= 160, subnormal results and overflow included.
HWY_INLINE VF scale_by_power(VF y, VF n) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return VF{_mm512_scalef_ps(y.raw, n.raw)};
#else
  const VF half = hn::Floor(hn::Mul(n, splat(0.5f)));
  return hn::Mul(hn::Mul(y, power_of_two(half)), power_of_two(hn::Sub(n, half)));
#endif
}

HWY_INLINE VF exp(VF x) {
  const Reduced p = reduce_ln2(clamp(x, -104.0f, 89.0f));
  return scale_by_power(exp_small(p.r), p.n);
}

/// e^x for -87.3 <= x <= 88, with relative error 2e-7 + 1.4e-8 |x|: fewer steps than exp. NaN stays
/// NaN, other arguments give anything.
HWY_INLINE VF exp_in_range(VF x) {
#if HWY_NATIVE_FMA
  // 2^(n + r), where one fused multiply-add leaves r exact but for the rounding of log2 e.
  static constexpr float c[] = {0.693146977f, 0.240222418f, 0.05550734f, 0.00967153391f,
                                0.00132646999f};
  const VF n = hn::Round(hn::Mul(x, splat(kLog2E)));
  const VF r = hn::MulSub(x, splat(kLog2E), n);
  const VF y = hn::MulAdd(r, polynomial(r, c), splat(1.0f));
#else
  const Reduced p = reduce_ln2(x);
  const VF n = p.n, y = exp_small(p.r);
#endif
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return VF{_mm512_scalef_ps(y.raw, n.raw)};
#else
  return hn::Mul(y, power_of_two(n));
#endif
}

/// e^x for x <= 0, as sums of probabilities need it: results below 2^-126 become 0.
HWY_INLINE VF exp_nonpositive(VF x) {
  return hn::IfThenZeroElse(hn::Lt(x, splat(-87.33f)), exp_in_range(x));
}

/// e^x - 1 for x in [0, 40], relative to the result.
HWY_INLINE VF expm1_positive(VF x) {
  static constexpr float c[] = {0.500000006f, 0.16666543f, 0.041666282f, 0.00836658395f,
                                0.00139464508f};
  const Reduced p = reduce_ln2(x);
  const VF small = hn::MulAdd(hn::Mul(p.r, p.r), polynomial(p.r, c), p.r);
  const VF power = power_of_two(p.n);
  return hn::MulAdd(power, small, hn::Sub(power, splat(1.0f)));
}

HWY_INLINE VF log(VF x) {
  const DI di;
  // Subnormal arguments are scaled into the normal range first.
  const auto tiny = hn::Lt(x, splat(std::numeric_limits<float>::min()));
  const VF scaled = hn::IfThenElse(tiny, hn::Mul(x, splat(0x1p25f)), x);
  const VF shift = hn::IfThenElseZero(tiny, splat(-25.0f));
  // x = 2^e m with m in [sqrt(1/2), sqrt 2): the offset is the bit pattern of sqrt(1/2).
  const auto offset = hn::Set(di, 0x3f3504f3);
  const auto bits = hn::Sub(hn::BitCast(di, scaled), offset);
  const auto e = hn::ShiftRight<23>(bits);
  const VF m = hn::BitCast(DF(), hn::Add(hn::And(bits, hn::Set(di, 0x7fffff)), offset));
  const VF n = hn::Add(hn::ConvertTo(DF(), e), shift);
  const VF f = hn::Sub(m, splat(1.0f));
  static constexpr float c[] = {0.333333104f,  -0.249999866f, 0.200022267f,
                                -0.166692496f, 0.142186557f,  -0.123843685f,
                                0.118730129f,  -0.11789705f,  0.0691516552f};
  const VF f2 = hn::Mul(f, f);
  VF y = hn::Mul(hn::Mul(f2, f), polynomial(f, c));
  y = hn::MulAdd(n, splat(kLn2Low), y);
  y = hn::NegMulAdd(f2, splat(0.5f), y);
  y = hn::MulAdd(n, splat(kLn2High), hn::Add(f, y));
  y = hn::IfThenElse(hn::Eq(x, splat(kInfinity)), x, y);
  y = hn::IfThenElse(hn::Eq(x, hn::Zero(DF())), splat(-kInfinity), y);
  const VF nan = splat(std::numeric_limits<float>::quiet_NaN());
  return hn::IfThenElse(hn::Ge(x, hn::Zero(DF())), y, nan);
}

HWY_INLINE VF tanh(VF x) {
  // tanh |x| = (e^2|x| - 1) / (e^2|x| + 1); from 9.02 on it rounds to 1.
  const VF t = clamp(hn::Abs(x), 0.0f, 10.0f);
  const VF em1 = expm1_positive(hn::Add(t, t));
  return hn::CopySign(hn::Div(em1, hn::Add(em1, splat(2.0f))), x);
}

/// 1 / (1 + e^-x), written with e^-|x| so that small results keep their digits.
HWY_INLINE VF sigmoid(VF x) {
  const VF one = splat(1.0f), e = exp(hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(DF())), e, one), hn::Add(one, e));
}

/// 1 / x for a normal x whose reciprocal is normal, within one unit in the last place.
HWY_INLINE VF fast_reciprocal(VF x) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  // 14 bits, doubled by one step of Newton's iteration: a third of the time of a division.
  const VF r = hn::ApproximateReciprocal(x);
  return hn::MulAdd(r, hn::NegMulAdd(x, r, splat(1.0f)), r);
#else
  return hn::Div(splat(1.0f), x);
#endif
}

/// erfc z for 0 <= z <= 14.5: t e^(-z^2 + Q(t)) with t = 1 / (1 + z/2).
HWY_INLINE VF erfc_positive(VF z) {
  static constexpr float c[] = {-1.2655671f,   1.00155586f,  0.355907108f, 0.217104773f,
                                -0.677963669f, 1.57964542f,  -3.40187655f, 4.07006754f,
                                -2.67005205f,  0.924880774f, -0.133702106f};
  const VF t = fast_reciprocal(hn::MulAdd(z, splat(0.5f), splat(1.0f)));
  return hn::Mul(t, exp(hn::NegMulAdd(z, z, polynomial(t, c))));
}

HWY_INLINE VF erf(VF x) {
  static constexpr float c[] = {1.12837917f,    -0.376126271f,   0.112836002f,   -0.0268544457f,
                                0.00518953545f, -0.00080208423f, 7.88912295e-05f};
  const VF z = hn::Abs(x);
  const VF near = hn::Mul(x, polynomial(hn::Mul(x, x), c));
  const VF far = hn::CopySign(hn::Sub(splat(1.0f), erfc_positive(clamp(z, 0.0f, 10.0f))), x);
  return hn::IfThenElse(hn::Le(z, splat(1.0f)), near, far);
}

/// (1 + erf(x / sqrt 2)) / 2, without the cancellation for negative x.
HWY_INLINE VF normal_cdf(VF x) {
  const VF z = hn::Mul(clamp(hn::Abs(x), 0.0f, 14.5f), splat(0.707106781f));
  const VF tail = hn::Mul(splat(0.5f), erfc_positive(z));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(DF())), tail, hn::Sub(splat(1.0f), tail));
}

}  // namespace
}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BRRR_VMATH_INL_H
