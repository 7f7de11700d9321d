// The element-wise ops as functions of vectors: what the row kernels and the fused tiles apply.

#if defined(BRRR_FUNCTIONS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BRRR_FUNCTIONS_INL_H
#undef BRRR_FUNCTIONS_INL_H
#else
#define BRRR_FUNCTIONS_INL_H
#endif

#include "backend/cpu/simd/vmath-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE VF f_neg(VF x) { return hn::Neg(x); }
HWY_INLINE VF f_exp(VF x) { return exp(x); }
HWY_INLINE VF f_log(VF x) { return log(x); }
HWY_INLINE VF f_sqrt(VF x) { return hn::Sqrt(x); }
HWY_INLINE VF f_rsqrt(VF x) { return hn::Div(splat(1.0f), hn::Sqrt(x)); }
HWY_INLINE VF f_reciprocal(VF x) { return hn::Div(splat(1.0f), x); }
HWY_INLINE VF f_square(VF x) { return hn::Mul(x, x); }
HWY_INLINE VF f_abs(VF x) { return hn::Abs(x); }
HWY_INLINE VF f_floor(VF x) { return hn::Floor(x); }
HWY_INLINE VF f_ceil(VF x) { return hn::Ceil(x); }
HWY_INLINE VF f_round(VF x) { return hn::Round(x); }  // half to even
HWY_INLINE VF f_tanh(VF x) { return tanh(x); }
HWY_INLINE VF f_erf(VF x) { return erf(x); }
HWY_INLINE VF f_sigmoid(VF x) { return sigmoid(x); }
HWY_INLINE VF f_relu(VF x) {
  return hn::IfThenZeroElse(hn::Le(x, hn::Zero(DF())), x);  // NaN stays NaN
}

/// x / (1 + e^z). Where e overflows: 0, and NaN for an infinite x, as the formula has it.
HWY_INLINE VF gated(VF x, VF z) {
  const VF e = exp_in_range(clamp(z, -87.0f, 87.0f));
  const VF y = hn::Div(x, hn::Add(splat(1.0f), e));
  return hn::IfThenElse(hn::Gt(z, splat(87.0f)), hn::Mul(x, hn::Zero(DF())), y);
}
HWY_INLINE VF f_silu(VF x) { return gated(x, hn::Neg(x)); }

// x Phi(x) in its tanh form is x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3): one exponential
// and no cancellation for negative x.
constexpr float kTwoU = 1.5957691216f;  // 2 sqrt(2/pi)
constexpr float kTwoUCubic = 1.5957691216f * 0.044715f;
HWY_INLINE VF f_gelu_tanh(VF x) {
  const VF x2 = hn::Mul(x, x);
  return gated(x, hn::Mul(x, hn::NegMulAdd(x2, splat(kTwoUCubic), splat(-kTwoU))));
}
HWY_INLINE VF f_gelu_erf(VF x) { return hn::Mul(x, normal_cdf(x)); }

#define BRRR_OP(Name, ...)                       \
  struct Name {                                  \
    template <typename V>                        \
    HWY_INLINE auto operator()(V a, V b) const { \
      return __VA_ARGS__;                        \
    }                                            \
  };
BRRR_OP(Add, hn::Add(a, b))
BRRR_OP(Sub, hn::Sub(a, b))
BRRR_OP(Mul, hn::Mul(a, b))
BRRR_OP(Div, hn::Div(a, b))
BRRR_OP(Equal, hn::Eq(a, b))
BRRR_OP(NotEqual, hn::Not(hn::Eq(a, b)))  // true for NaN, which Highway's Ne denies on AVX
BRRR_OP(Less, hn::Lt(a, b))
BRRR_OP(Greater, hn::Gt(a, b))
BRRR_OP(MaxInt, hn::Max(a, b))
BRRR_OP(MinInt, hn::Min(a, b))
// NaN if either is; of two equal values the first, which matters for -0 and 0.
BRRR_OP(Maximum, hn::IfThenElse(hn::IsNaN(b), b, hn::IfThenElse(hn::Lt(a, b), b, a)))
BRRR_OP(Minimum, hn::IfThenElse(hn::IsNaN(b), b, hn::IfThenElse(hn::Gt(a, b), b, a)))
BRRR_OP(LessEqual, hn::Le(a, b))
BRRR_OP(GreaterEqual, hn::Ge(a, b))
// Integers have no Le on every target.
BRRR_OP(LessEqualInt, hn::Not(hn::Gt(a, b)))
BRRR_OP(GreaterEqualInt, hn::Not(hn::Lt(a, b)))
#undef BRRR_OP

// d/dx of x s with s = 1 / (1 + e^-2u): s + x s (1 - s) (2u)', where 1 - s = e s for e = e^-2u.
struct GeluTanhGrad {
  HWY_INLINE VF operator()(VF dy, VF x_any) const {
    constexpr float kCubic = 0.044715f;
    // From |x| = 12 on the derivative is 0 or 1; beyond, x^3 would overflow before s vanishes.
    const VF x = clamp(x_any, -12.0f, 12.0f), x2 = hn::Mul(x, x);
    const VF minus_2u = hn::Mul(x, hn::NegMulAdd(x2, splat(kTwoU * kCubic), splat(-kTwoU)));
    const VF e = exp_in_range(clamp(minus_2u, -87.0f, 87.0f));
    const VF s = hn::Div(splat(1.0f), hn::Add(splat(1.0f), e));
    const VF slope = hn::MulAdd(x2, splat(3 * kTwoU * kCubic), splat(kTwoU));
    return hn::Mul(dy, hn::MulAdd(hn::Mul(hn::Mul(x, slope), hn::Mul(e, s)), s, s));
  }
};
// d/dx of x s with s = 1 / (1 + e^-x): s + x s (1 - s), where 1 - s = e s for e = e^-x.
struct SiluGrad {
  HWY_INLINE VF operator()(VF dy, VF x_any) const {
    const VF x = clamp(x_any, -87.0f, 87.0f);  // beyond, the derivative is 0 or 1 in f32
    const VF e = exp_in_range(hn::Neg(x));
    const VF s = hn::Div(splat(1.0f), hn::Add(splat(1.0f), e));
    return hn::Mul(dy, hn::MulAdd(hn::Mul(x, hn::Mul(e, s)), s, s));
  }
};
struct GeluErfGrad {
  HWY_INLINE VF operator()(VF dy, VF x_any) const {
    const VF x = clamp(x_any, -14.0f, 14.0f);  // beyond, the density is 0 in f32
    const VF density = hn::Mul(splat(0.3989422804f), exp(hn::Mul(hn::Mul(x, x), splat(-0.5f))));
    return hn::Mul(dy, hn::MulAdd(x, density, normal_cdf(x)));
  }
};

}  // namespace
}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BRRR_FUNCTIONS_INL_H
