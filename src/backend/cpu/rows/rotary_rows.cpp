#include "backend/cpu/rows/rotary_rows.h"

#include "backend/cpu/simd/simd_types.h"
#include "base/errors.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows/rotary_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

/// Both numbers of a pair are read before one is written.
template <typename In, typename Out>
HWY_INLINE void turn(const RotaryRow& r, const In* a, const In* b, Out* to_a, Out* to_b) {
  const VF sign = splat(r.inverse ? -1.0f : 1.0f);
  each_vector(r.half, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    const VF c = w.load(r.cos + i), s = hn::Mul(sign, w.load(r.sin + i));
    const VF x = w.load(a + i), y = w.load(b + i);
    w.store(hn::NegMulAdd(y, s, hn::Mul(x, c)), to_a + i);
    w.store(hn::MulAdd(x, s, hn::Mul(y, c)), to_b + i);
  });
}

template <typename T>
void halves(const RotaryRow& r) {
  for (int64_t h = 0; h < r.heads; ++h) {
    const T* x = static_cast<const T*>(r.x) + h * r.width;
    T* y = static_cast<T*>(r.y) + h * r.width;
    turn(r, x, x + r.half, y, y + r.half);
  }
}

/// Pairs side by side are parted, turned and joined, some at a time.
template <typename T>
void pairs(const RotaryRow& r) {
  constexpr int64_t kPairs = 128;
  T a[kPairs], b[kPairs];
  for (int64_t h = 0; h < r.heads; ++h) {
    for (int64_t first = 0; first < r.half; first += kPairs) {
      RotaryRow part = r;
      part.half = r.half - first < kPairs ? r.half - first : kPairs;
      part.cos += first;
      part.sin += first;
      const T* x = static_cast<const T*>(r.x) + h * r.width + 2 * first;
      T* y = static_cast<T*>(r.y) + h * r.width + 2 * first;
      for (int64_t i = 0; i < part.half; ++i) a[i] = x[2 * i], b[i] = x[2 * i + 1];
      turn(part, a, b, a, b);
      for (int64_t i = 0; i < part.half; ++i) y[2 * i] = a[i], y[2 * i + 1] = b[i];
    }
  }
}

template <typename T>
void row(const RotaryRow& r) {
  r.interleaved ? pairs<T>(r) : halves<T>(r);
}

}  // namespace

RotaryFunction rotary_table(DType dtype) {
  if (dtype == DType::f32) return &row<float>;
  return dtype == DType::bf16 ? &row<Bf16> : &row<F16>;
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(rotary_table);
RotaryFunction rotary_row(DType dtype) {
  BRRR_CHECK(is_compute_float(dtype), "rotary of {}", name_of(dtype));
  return HWY_DYNAMIC_DISPATCH(rotary_table)(dtype);
}
}  // namespace brrr::cpu
#endif
