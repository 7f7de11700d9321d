#include "backend/cpu/rows/softmax_rows.h"

#include <type_traits>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows/softmax_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/vmath-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

/// Three passes over a row that stays in cache: the largest, e^(x - largest) with its sum, the
/// scale. An element NaN or a row of -inf makes every difference or the sum NaN, as the op says.
template <typename T>
void forward_row(const T* x, T* y, int64_t n) {
  // In 16 bits the exponentials are not kept between the passes, or they would be rounded twice.
  constexpr bool kKeep = std::is_same_v<T, float>;
  const VF lowest = splat(-kInfinity);
  VF top[4] = {lowest, lowest, lowest, lowest};
  each_vector_4(n, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
    top[slot] = hn::Max(top[slot], w.load_or(x + i, lowest));
  });
  const VF largest = splat(max_4(top));
  const VF zero = hn::Zero(DF());
  VF total[4] = {zero, zero, zero, zero};
  each_vector_4(n, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
    const VF e = exp_nonpositive(hn::Sub(w.load(x + i), largest));
    if constexpr (kKeep) w.store(e, y + i);
    total[slot] = hn::Add(total[slot], w.keep(e));
  });
  const VF scale = splat(1.0f / sum_4(total));
  each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    if constexpr (kKeep) {
      w.store(hn::Mul(w.load(y + i), scale), y + i);
    } else {
      w.store(hn::Mul(exp_nonpositive(hn::Sub(w.load(x + i), largest)), scale), y + i);
    }
  });
}

template <typename T>
void forward(const void* x, void* y, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r)
    forward_row(static_cast<const T*>(x) + r * n, static_cast<T*>(y) + r * n, n);
}

template <typename T>
void backward(const void* dy_rows, const void* y_rows, void* dx_rows, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* dy = static_cast<const T*>(dy_rows) + r * n;
    const T* y = static_cast<const T*>(y_rows) + r * n;
    T* dx = static_cast<T*>(dx_rows) + r * n;
    const VF zero = hn::Zero(DF());
    VF dot[4] = {zero, zero, zero, zero};
    each_vector_4(n, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
      dot[slot] = hn::MulAdd(w.load(dy + i), w.load(y + i), dot[slot]);
    });
    const VF total = splat(sum_4(dot));
    each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
      w.store(hn::Mul(w.load(y + i), hn::Sub(w.load(dy + i), total)), dx + i);
    });
  }
}

constexpr SoftmaxRows kRowsOfF32 = {&forward<float>, &backward<float>},
                      kRowsOfBf16 = {&forward<Bf16>, &backward<Bf16>},
                      kRowsOfF16 = {&forward<F16>, &backward<F16>};

}  // namespace

const SoftmaxRows& softmax_table(DType dtype) {
  return dtype == DType::f32 ? kRowsOfF32 : dtype == DType::bf16 ? kRowsOfBf16 : kRowsOfF16;
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(softmax_table);
const SoftmaxRows& softmax_rows(DType dtype) { return HWY_DYNAMIC_DISPATCH(softmax_table)(dtype); }
}  // namespace brrr::cpu
#endif
