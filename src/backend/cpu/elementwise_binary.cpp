// Rows of two operands: arithmetic on f32 and i32, comparisons, logic, the derivative of gelu.

#include "backend/cpu/elementwise_rows.h"
#include "backend/cpu/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise_binary.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/vmath-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

using VI = hn::Vec<DI>;

HWY_INLINE VI load(const int32_t* p) { return hn::LoadU(DI(), p); }
HWY_INLINE void store(VI v, int32_t* p) { hn::StoreU(v, DI(), p); }
HWY_INLINE VI splat(int32_t x) { return hn::Set(DI(), x); }

/// 0 or 1 per lane of a comparison.
template <typename Mask>
HWY_INLINE void store_bool(Mask m, uint8_t* p) {
  const auto ones = hn::IfThenElseZero(hn::RebindMask(DI(), m), hn::Set(DI(), 1));
  hn::StoreU(hn::DemoteTo(D8(), ones), D8(), p);
}

template <typename T, typename Op>
HWY_INLINE void put(Op op, decltype(splat(T{})) a, decltype(splat(T{})) b, T* y) {
  store(op(a, b), y);
}
template <typename T, typename Op>
HWY_INLINE void put(Op op, decltype(splat(T{})) a, decltype(splat(T{})) b, uint8_t* y) {
  store_bool(op(a, b), y);
}

/// The last, partial vector of a row goes through whole vectors of our own.
template <typename T, typename Y, typename Op, bool kRepeatA, bool kRepeatB>
HWY_INLINE void binary_row(const T* a, const T* b, Y* y, int64_t n) {
  const Op op;
  const auto va = splat(kRepeatA ? *a : T{});
  const auto vb = splat(kRepeatB ? *b : T{});
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    put<T>(op, kRepeatA ? va : load(a + i), kRepeatB ? vb : load(b + i), y + i);
  if (i >= n) return;
  T ta[kLanes] = {}, tb[kLanes] = {};
  Y ty[kLanes];
  const auto rest = static_cast<size_t>(n - i);
  if (!kRepeatA) std::memcpy(ta, a + i, rest * sizeof(T));
  if (!kRepeatB) std::memcpy(tb, b + i, rest * sizeof(T));
  put<T>(op, kRepeatA ? va : load(ta), kRepeatB ? vb : load(tb), ty);
  std::memcpy(y + i, ty, rest * sizeof(Y));
}

template <typename T, typename Y, typename Op>
void binary(const Row& row) {
  const auto *a = static_cast<const T*>(row.in[0]), *b = static_cast<const T*>(row.in[1]);
  auto* y = static_cast<Y*>(row.out);
  if (row.repeated == 0) {
    binary_row<T, Y, Op, false, false>(a, b, y, row.n);
  } else if (row.repeated == 1) {
    binary_row<T, Y, Op, true, false>(a, b, y, row.n);
  } else {
    binary_row<T, Y, Op, false, true>(a, b, y, row.n);
  }
}

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
    constexpr float kTwoU = 1.5957691216f, kCubic = 0.044715f;
    // From |x| = 12 on the derivative is 0 or 1; beyond, x^3 would overflow before s vanishes.
    const VF x = clamp(x_any, -12.0f, 12.0f), x2 = hn::Mul(x, x);
    const VF minus_2u = hn::Mul(x, hn::NegMulAdd(x2, splat(kTwoU * kCubic), splat(-kTwoU)));
    const VF e = exp_in_range(clamp(minus_2u, -87.0f, 87.0f));
    const VF s = hn::Div(splat(1.0f), hn::Add(splat(1.0f), e));
    const VF slope = hn::MulAdd(x2, splat(3 * kTwoU * kCubic), splat(kTwoU));
    return hn::Mul(dy, hn::MulAdd(hn::Mul(hn::Mul(x, slope), hn::Mul(e, s)), s, s));
  }
};
struct GeluErfGrad {
  HWY_INLINE VF operator()(VF dy, VF x_any) const {
    const VF x = clamp(x_any, -14.0f, 14.0f);  // beyond, the density is 0 in f32
    const VF density = hn::Mul(splat(0.3989422804f), exp(hn::Mul(hn::Mul(x, x), splat(-0.5f))));
    return hn::Mul(dy, hn::MulAdd(x, density, normal_cdf(x)));
  }
};

template <bool kAnd>
void logical(const Row& row) {
  const auto *a = static_cast<const uint8_t*>(row.in[0]),
             *b = static_cast<const uint8_t*>(row.in[1]);
  auto* y = static_cast<uint8_t*>(row.out);
  const hn::ScalableTag<uint8_t> d;
  const auto n8 = static_cast<int64_t>(hn::Lanes(d));
  const auto one = hn::Set(d, uint8_t{1});
  const bool repeat_a = row.repeated & 1, repeat_b = row.repeated & 2;
  int64_t i = 0;
  for (; i + n8 <= row.n; i += n8) {
    const auto va = hn::Min(repeat_a ? hn::Set(d, *a) : hn::LoadU(d, a + i), one);
    const auto vb = hn::Min(repeat_b ? hn::Set(d, *b) : hn::LoadU(d, b + i), one);
    hn::StoreU(kAnd ? hn::And(va, vb) : hn::Or(va, vb), d, y + i);
  }
  for (; i < row.n; ++i) {
    const bool xa = a[repeat_a ? 0 : i] != 0, xb = b[repeat_b ? 0 : i] != 0;
    y[i] = kAnd ? xa && xb : xa || xb;
  }
}

constexpr RowEntry kRows[] = {
    {"add", DType::f32, &binary<float, float, Add>},
    {"sub", DType::f32, &binary<float, float, Sub>},
    {"mul", DType::f32, &binary<float, float, Mul>},
    {"div", DType::f32, &binary<float, float, Div>},
    {"maximum", DType::f32, &binary<float, float, Maximum>},
    {"minimum", DType::f32, &binary<float, float, Minimum>},
    {"add", DType::i32, &binary<int32_t, int32_t, Add>},
    {"sub", DType::i32, &binary<int32_t, int32_t, Sub>},
    {"mul", DType::i32, &binary<int32_t, int32_t, Mul>},
    {"maximum", DType::i32, &binary<int32_t, int32_t, MaxInt>},
    {"minimum", DType::i32, &binary<int32_t, int32_t, MinInt>},
    {"equal", DType::f32, &binary<float, uint8_t, Equal>},
    {"not_equal", DType::f32, &binary<float, uint8_t, NotEqual>},
    {"less", DType::f32, &binary<float, uint8_t, Less>},
    {"less_equal", DType::f32, &binary<float, uint8_t, LessEqual>},
    {"greater", DType::f32, &binary<float, uint8_t, Greater>},
    {"greater_equal", DType::f32, &binary<float, uint8_t, GreaterEqual>},
    {"equal", DType::i32, &binary<int32_t, uint8_t, Equal>},
    {"not_equal", DType::i32, &binary<int32_t, uint8_t, NotEqual>},
    {"less", DType::i32, &binary<int32_t, uint8_t, Less>},
    {"less_equal", DType::i32, &binary<int32_t, uint8_t, LessEqualInt>},
    {"greater", DType::i32, &binary<int32_t, uint8_t, Greater>},
    {"greater_equal", DType::i32, &binary<int32_t, uint8_t, GreaterEqualInt>},
    {"gelu_grad.tanh", DType::f32, &binary<float, float, GeluTanhGrad>},
    {"gelu_grad.none", DType::f32, &binary<float, float, GeluErfGrad>},
    {"logical_and", DType::boolean, &logical<true>},
    {"logical_or", DType::boolean, &logical<false>},
};

}  // namespace

std::span<const RowEntry> binary_row_table() { return kRows; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(binary_row_table);
std::span<const RowEntry> binary_rows() { return HWY_DYNAMIC_DISPATCH(binary_row_table)(); }
}  // namespace brrr::cpu
#endif
