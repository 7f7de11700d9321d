// Rows of two operands: arithmetic on f32 and i32, comparisons, logic, the derivative of gelu.

#include "backend/cpu/rows/elementwise_rows.h"
#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows/elementwise_binary.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/functions-inl.h"

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
    {Op::add, DType::f32, &binary<float, float, Add>},
    {Op::sub, DType::f32, &binary<float, float, Sub>},
    {Op::mul, DType::f32, &binary<float, float, Mul>},
    {Op::div, DType::f32, &binary<float, float, Div>},
    {Op::maximum, DType::f32, &binary<float, float, Maximum>},
    {Op::minimum, DType::f32, &binary<float, float, Minimum>},
    {Op::add, DType::i32, &binary<int32_t, int32_t, Add>},
    {Op::sub, DType::i32, &binary<int32_t, int32_t, Sub>},
    {Op::mul, DType::i32, &binary<int32_t, int32_t, Mul>},
    {Op::maximum, DType::i32, &binary<int32_t, int32_t, MaxInt>},
    {Op::minimum, DType::i32, &binary<int32_t, int32_t, MinInt>},
    {Op::equal, DType::f32, &binary<float, uint8_t, Equal>},
    {Op::not_equal, DType::f32, &binary<float, uint8_t, NotEqual>},
    {Op::less, DType::f32, &binary<float, uint8_t, Less>},
    {Op::less_equal, DType::f32, &binary<float, uint8_t, LessEqual>},
    {Op::greater, DType::f32, &binary<float, uint8_t, Greater>},
    {Op::greater_equal, DType::f32, &binary<float, uint8_t, GreaterEqual>},
    {Op::equal, DType::i32, &binary<int32_t, uint8_t, Equal>},
    {Op::not_equal, DType::i32, &binary<int32_t, uint8_t, NotEqual>},
    {Op::less, DType::i32, &binary<int32_t, uint8_t, Less>},
    {Op::less_equal, DType::i32, &binary<int32_t, uint8_t, LessEqualInt>},
    {Op::greater, DType::i32, &binary<int32_t, uint8_t, Greater>},
    {Op::greater_equal, DType::i32, &binary<int32_t, uint8_t, GreaterEqualInt>},
    {Op::silu_grad, DType::f32, &binary<float, float, SiluGrad>},
    {Op::gelu_grad, DType::f32, &binary<float, float, GeluTanhGrad>, "tanh"},
    {Op::gelu_grad, DType::f32, &binary<float, float, GeluErfGrad>, "none"},
    {Op::logical_and, DType::boolean, &logical<true>},
    {Op::logical_or, DType::boolean, &logical<false>},
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
