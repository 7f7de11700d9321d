#include "backend/cpu/rows/norm_rows.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/simd/simd_types.h"
#include "base/errors.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows/norm_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE float get(float x) { return x; }
HWY_INLINE float get(Bf16 x) { return float_from_bf16(x.bits); }
HWY_INLINE float get(F16 x) { return float_from_f16(x.bits); }
HWY_INLINE void put(float x, float* to) { *to = x; }
HWY_INLINE void put(float x, Bf16* to) { to->bits = bf16_from_float(x); }
HWY_INLINE void put(float x, F16* to) { to->bits = f16_from_float(x); }

/// Where rows are centred: the mean first, then the variance around it; all passes read the row
/// from cache. The mean of what is left (`rest`) takes back the rounding of the mean, which matters
/// where a row is nearly constant.
template <bool kCentred, typename T>
void forward(const void* x_rows, const void* weight_row, const void* bias_row, float eps,
             void* y_rows, void* means, void* rstds, int64_t rows, int64_t n) {
  const auto *weight = static_cast<const T*>(weight_row), *bias = static_cast<const T*>(bias_row);
  const float count = static_cast<float>(n);
  const VF zero = hn::Zero(DF());
  for (int64_t r = 0; r < rows; ++r) {
    const T* x = static_cast<const T*>(x_rows) + r * n;
    T* y = static_cast<T*>(y_rows) + r * n;
    if constexpr (!kCentred) {
      VF square[4] = {zero, zero, zero, zero};
      each_vector_4(n, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
        const VF v = w.load(x + i);
        square[slot] = hn::MulAdd(v, v, square[slot]);
      });
      const float rstd = 1.0f / std::sqrt(sum_4(square) / count + eps);
      const VF scale = splat(rstd);
      each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
        w.store(hn::Mul(hn::Mul(w.load(x + i), scale), w.load(weight + i)), y + i);
      });
      put(rstd, static_cast<T*>(rstds) + r);
      continue;
    }
    VF total[4] = {zero, zero, zero, zero};
    each_vector_4(n, [&](auto w, int64_t i, int slot)
                         BRRR_INLINE_BODY { total[slot] = hn::Add(total[slot], w.load(x + i)); });
    const float mean = sum_4(total) / count;
    const VF centre = splat(mean);
    VF left[4] = {zero, zero, zero, zero}, square[4] = {zero, zero, zero, zero};
    each_vector_4(n, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
      const VF d = w.keep(hn::Sub(w.load(x + i), centre));
      left[slot] = hn::Add(left[slot], d);
      square[slot] = hn::MulAdd(d, d, square[slot]);
    });
    const float rest = sum_4(left) / count;
    const float spread = sum_4(square) / count - rest * rest;
    const float variance = spread < 0 ? 0.0f : spread;  // NaN stays
    const float rstd = 1.0f / std::sqrt(variance + eps);
    const VF scale = splat(rstd), shift = splat(-rest * rstd);
    each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
      const VF h = hn::MulAdd(hn::Sub(w.load(x + i), centre), scale, shift);
      w.store(hn::MulAdd(h, w.load(weight + i), w.load(bias + i)), y + i);
    });
    put(mean + rest, static_cast<T*>(means) + r);
    put(rstd, static_cast<T*>(rstds) + r);
  }
}

/// Rows are taken kTogether at a time, so that the running sums of dweight and dbias are loaded and
/// stored once for all of them.
template <bool kCentred, int kTogether, typename T>
void backward_rows(const T* dy, const T* x, const T* weight, const T* means, const T* rstds, T* dx,
                   float* dweight, float* dbias, int64_t n) {
  const float count = static_cast<float>(n);
  const VF zero = hn::Zero(DF());
  VF mean[kTogether], rstd[kTogether], mean_g[kTogether], mean_gh[kTogether];
  const auto normed = [&](auto w, int r, int64_t i) BRRR_INLINE_BODY {
    const VF v = w.load(x + r * n + i);
    return hn::Mul(kCentred ? hn::Sub(v, mean[r]) : v, rstd[r]);
  };
  for (int r = 0; r < kTogether; ++r) {
    mean[r] = kCentred ? splat(get(means[r])) : zero;
    rstd[r] = splat(get(rstds[r]));
    VF sum_g[4] = {zero, zero, zero, zero}, sum_gh[4] = {zero, zero, zero, zero};
    each_vector_4(n, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
      const VF g = hn::Mul(w.load(dy + r * n + i), w.load(weight + i));
      if constexpr (kCentred) sum_g[slot] = hn::Add(sum_g[slot], g);
      sum_gh[slot] = hn::MulAdd(g, w.keep(normed(w, r, i)), sum_gh[slot]);
    });
    mean_g[r] = kCentred ? splat(sum_4(sum_g) / count) : zero;
    mean_gh[r] = splat(sum_4(sum_gh) / count);
  }
  each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    const VF scale = w.load(weight + i);
    VF dw = w.load(dweight + i), db = kCentred ? w.load(dbias + i) : zero;
    for (int r = 0; r < kTogether; ++r) {
      const VF d = w.load(dy + r * n + i), h = normed(w, r, i);
      dw = hn::MulAdd(d, h, dw);
      VF g = hn::Mul(d, scale);
      if constexpr (kCentred) {
        db = hn::Add(db, d);
        g = hn::Sub(g, mean_g[r]);
      }
      w.store(hn::Mul(rstd[r], hn::NegMulAdd(h, mean_gh[r], g)), dx + r * n + i);
    }
    w.store(dw, dweight + i);
    if constexpr (kCentred) w.store(db, dbias + i);
  });
}

template <bool kCentred, typename T>
void backward(const void* dy, const void* x, const void* weight, const void* mean, const void* rstd,
              void* dx, float* dweight, float* dbias, bool add, int64_t rows, int64_t n) {
  constexpr int kTogether = 4;
  if (!add) {
    std::fill_n(dweight, n, 0.0f);
    if (kCentred) std::fill_n(dbias, n, 0.0f);
  }
  auto run = [&](auto function, int64_t r) {
    function(static_cast<const T*>(dy) + r * n, static_cast<const T*>(x) + r * n,
             static_cast<const T*>(weight), kCentred ? static_cast<const T*>(mean) + r : nullptr,
             static_cast<const T*>(rstd) + r, static_cast<T*>(dx) + r * n, dweight, dbias, n);
  };
  int64_t r = 0;
  for (; r + kTogether <= rows; r += kTogether) run(&backward_rows<kCentred, kTogether, T>, r);
  for (; r < rows; ++r) run(&backward_rows<kCentred, 1, T>, r);
}

template <typename T>
void combine(const float* chunks, int64_t count, int64_t stride, void* out, int64_t n) {
  each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    VF total = hn::Zero(DF());
    for (int64_t c = 0; c < count; ++c) total = hn::Add(total, w.load(chunks + c * stride + i));
    w.store(total, static_cast<T*>(out) + i);
  });
}

template <bool kCentred, typename T>
constexpr NormRows kRows{&forward<kCentred, T>, &backward<kCentred, T>, &combine<T>};

}  // namespace

const NormRows& norm_table(DType dtype, bool centred) {
  if (dtype == DType::f32) return centred ? kRows<true, float> : kRows<false, float>;
  if (dtype == DType::bf16) return centred ? kRows<true, Bf16> : kRows<false, Bf16>;
  return centred ? kRows<true, F16> : kRows<false, F16>;
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(norm_table);
const NormRows& norm_rows(DType dtype, bool centred) {
  BRRR_CHECK(is_compute_float(dtype), "rows of {}", name_of(dtype));
  return HWY_DYNAMIC_DISPATCH(norm_table)(dtype, centred);
}
}  // namespace brrr::cpu
#endif
