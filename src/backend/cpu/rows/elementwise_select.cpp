// Rows of where (any dtype, by its size), the conversions between f32 and the 16-bit floats, i32
// and bool, and those of floats to i8, u8 and i32.

#include <algorithm>
#include <cstring>
#include <limits>

#include "backend/cpu/rows/elementwise_rows.h"
#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows/elementwise_select.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/vmath-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

/// Loads booleans and widens them to the lanes of `d`.
template <typename D>
HWY_INLINE hn::Vec<D> load_condition(D d, const uint8_t* c) {
  const auto bytes = hn::LoadU(hn::Rebind<uint8_t, D>(), c);
  if constexpr (sizeof(hn::TFromD<D>) == 1)
    return bytes;
  else if constexpr (sizeof(hn::TFromD<D>) == 8)
    return hn::PromoteTo(d, hn::PromoteTo(hn::Rebind<uint32_t, D>(), bytes));
  else
    return hn::PromoteTo(d, bytes);
}

/// Computes y[i] = c[i] ? a[i] : b[i] on the bits of the elements: T is unsigned.
template <typename T, bool kRepeatA, bool kRepeatB>
void select_vectors(const uint8_t* c, const T* a, const T* b, T* y, int64_t n) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto va = hn::Set(d, *a), vb = hn::Set(d, *b);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto off = hn::Eq(load_condition(d, c + i), hn::Zero(d));
    hn::StoreU(hn::IfThenElse(off, kRepeatB ? vb : hn::LoadU(d, b + i),
                              kRepeatA ? va : hn::LoadU(d, a + i)),
               d, y + i);
  }
  for (; i < n; ++i) y[i] = c[i] ? a[kRepeatA ? 0 : i] : b[kRepeatB ? 0 : i];
}

template <typename T>
void select(const Row& row) {
  const auto* c = static_cast<const uint8_t*>(row.in[0]);
  const auto *a = static_cast<const T*>(row.in[1]), *b = static_cast<const T*>(row.in[2]);
  auto* y = static_cast<T*>(row.out);
  const int64_t step_c = !(row.repeated & 1), step_a = !(row.repeated & 2),
                step_b = !(row.repeated & 4);
  if (step_c == 0) {  // the whole row is a or b
    const T* from = *c ? a : b;
    if ((*c ? step_a : step_b) == 0) {
      const T value = *from;
      std::fill_n(y, row.n, value);
    } else if (from != y) {
      std::memmove(y, from, static_cast<size_t>(row.n) * sizeof(T));
    }
    return;
  }
  using Function = void (*)(const uint8_t*, const T*, const T*, T*, int64_t);
  static constexpr Function kFunctions[] = {
      &select_vectors<T, false, false>, &select_vectors<T, true, false>,
      &select_vectors<T, false, true>, &select_vectors<T, true, true>};
  kFunctions[row.repeated >> 1](c, a, b, y, row.n);
}

constexpr RowEntry kSelect[] = {
    {Op::where, DType::u8, &select<uint8_t>},
    {Op::where, DType::bf16, &select<uint16_t>},
    {Op::where, DType::f32, &select<uint32_t>},
    {Op::where, DType::f64, &select<uint64_t>},
};

template <typename From, typename To>
void convert(const Row& row) {
  const auto* x = static_cast<const From*>(row.in[0]);
  auto* y = static_cast<To*>(row.out);
  each_vector(row.n, [&](auto w, int64_t i) BRRR_INLINE_BODY { w.store(w.load(x + i), y + i); });
}
void int_to_float(const Row& row) {
  const auto* x = static_cast<const int32_t*>(row.in[0]);
  auto* y = static_cast<float*>(row.out);
  int64_t i = 0;
  for (; i + kLanes <= row.n; i += kLanes)
    store(hn::ConvertTo(DF(), hn::LoadU(DI(), x + i)), y + i);
  for (; i < row.n; ++i) y[i] = static_cast<float>(x[i]);
}
void bool_to_float(const Row& row) {
  const auto* x = static_cast<const uint8_t*>(row.in[0]);
  auto* y = static_cast<float*>(row.out);
  int64_t i = 0;
  for (; i + kLanes <= row.n; i += kLanes) {
    const auto off = hn::Eq(hn::PromoteTo(DI(), hn::LoadU(D8(), x + i)), hn::Zero(DI()));
    store(hn::IfThenZeroElse(hn::RebindMask(DF(), off), splat(1.0f)), y + i);
  }
  for (; i < row.n; ++i) y[i] = x[i] ? 1.0f : 0.0f;
}

/// Truncates floats to integers. NaN becomes 0; numbers outside the range of To saturate.
template <typename To>
HWY_INLINE auto truncate(VF v) {
  constexpr float kLow = static_cast<float>(std::numeric_limits<To>::min());
  const VF number = hn::IfThenElse(hn::IsNaN(v), hn::Zero(DF()), v);
  if constexpr (sizeof(To) == 4) {
    // The largest i32 has no exact f32, and the next float, 2^31, does not fit into an i32.
    const auto is_high = hn::Ge(number, splat(0x1p31f));
    const VF in_range = hn::IfThenElse(is_high, hn::Zero(DF()), hn::Max(number, splat(kLow)));
    return hn::IfThenElse(hn::RebindMask(DI(), is_high),
                          hn::Set(DI(), std::numeric_limits<int32_t>::max()),
                          hn::ConvertTo(DI(), in_range));
  } else {
    constexpr float kHigh = static_cast<float>(std::numeric_limits<To>::max());
    const hn::Rebind<To, DI> narrow;
    return hn::DemoteTo(narrow, hn::ConvertTo(DI(), clamp(number, kLow, kHigh)));
  }
}

template <typename From, typename To>
void float_to_int(const Row& row) {
  const hn::Rebind<To, DI> d;
  const auto* x = static_cast<const From*>(row.in[0]);
  auto* y = static_cast<To*>(row.out);
  int64_t i = 0;
  for (; i + kLanes <= row.n; i += kLanes) hn::StoreU(truncate<To>(load(x + i)), d, y + i);
  if (i == row.n) return;
  To last[kLanes];
  hn::StoreU(truncate<To>(load_part(x + i, row.n - i)), d, last);
  std::memcpy(y + i, last, static_cast<size_t>(row.n - i) * sizeof(To));
}

constexpr CastEntry kCasts[] = {
    {DType::f32, DType::i32, &float_to_int<float, int32_t>},
    {DType::f16, DType::i32, &float_to_int<F16, int32_t>},
    {DType::bf16, DType::i32, &float_to_int<Bf16, int32_t>},
    {DType::f32, DType::u8, &float_to_int<float, uint8_t>},
    {DType::f16, DType::u8, &float_to_int<F16, uint8_t>},
    {DType::bf16, DType::u8, &float_to_int<Bf16, uint8_t>},
    {DType::f32, DType::i8, &float_to_int<float, int8_t>},
    {DType::f16, DType::i8, &float_to_int<F16, int8_t>},
    {DType::bf16, DType::i8, &float_to_int<Bf16, int8_t>},
    {DType::f32, DType::bf16, &convert<float, Bf16>},
    {DType::bf16, DType::f32, &convert<Bf16, float>},
    {DType::f32, DType::f16, &convert<float, F16>},
    {DType::f16, DType::f32, &convert<F16, float>},
    {DType::i32, DType::f32, &int_to_float},
    {DType::boolean, DType::f32, &bool_to_float},
};

}  // namespace

std::span<const RowEntry> select_row_table() { return kSelect; }
std::span<const CastEntry> cast_row_table() { return kCasts; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(select_row_table);
HWY_EXPORT(cast_row_table);
std::span<const RowEntry> select_rows() { return HWY_DYNAMIC_DISPATCH(select_row_table)(); }
RowFunction vector_cast(DType from, DType to) {
  for (const CastEntry& entry : HWY_DYNAMIC_DISPATCH(cast_row_table)())
    if (entry.from == from && entry.to == to) return entry.run;
  return nullptr;
}
}  // namespace brrr::cpu
#endif
