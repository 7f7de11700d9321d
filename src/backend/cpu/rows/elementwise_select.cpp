// Rows of where (any dtype, by its size) and the conversions between f32 and the 16-bit floats, i32
// and bool.

#include "backend/cpu/rows/elementwise_rows.h"
#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows/elementwise_select.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

template <bool kRepeatA, bool kRepeatB>
void select_32(const uint8_t* c, const uint32_t* a, const uint32_t* b, uint32_t* y, int64_t n) {
  const DI d;
  const auto* ia = reinterpret_cast<const int32_t*>(a);
  const auto* ib = reinterpret_cast<const int32_t*>(b);
  auto* iy = reinterpret_cast<int32_t*>(y);
  const auto va = hn::Set(d, *ia), vb = hn::Set(d, *ib);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto off = hn::Eq(hn::PromoteTo(d, hn::LoadU(D8(), c + i)), hn::Zero(d));
    hn::StoreU(hn::IfThenElse(off, kRepeatB ? vb : hn::LoadU(d, ib + i),
                              kRepeatA ? va : hn::LoadU(d, ia + i)),
               d, iy + i);
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
      for (int64_t i = 0; i < row.n; ++i) y[i] = value;
    } else if (from != y) {
      std::memmove(y, from, static_cast<size_t>(row.n) * sizeof(T));
    }
    return;
  }
  if constexpr (sizeof(T) == 4) {
    using Function = void (*)(const uint8_t*, const T*, const T*, T*, int64_t);
    static constexpr Function kFunctions[] = {&select_32<false, false>, &select_32<true, false>,
                                              &select_32<false, true>, &select_32<true, true>};
    kFunctions[row.repeated >> 1](c, a, b, y, row.n);
  } else {
    for (int64_t i = 0; i < row.n; ++i) y[i] = c[i] ? a[i * step_a] : b[i * step_b];
  }
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

constexpr CastEntry kCasts[] = {
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
