#include "backend/cpu/rows/layer_norm_rows.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows/layer_norm_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE float get(float x) { return x; }
HWY_INLINE float get(Bf16 x) { return float_from_bf16(x.bits); }
HWY_INLINE void put(float x, float* to) { *to = x; }
HWY_INLINE void put(float x, Bf16* to) { to->bits = bf16_from_float(x); }

/// The mean first, then the variance around it; both passes read the row from cache. The mean of
/// what is left (`rest`) takes back the rounding of the mean, which matters where a row is nearly
/// constant.
template <typename T>
void forward(const void* x_rows, const void* weight_row, const void* bias_row, float eps,
             void* y_rows, void* means, void* rstds, int64_t rows, int64_t n) {
  const auto *weight = static_cast<const T*>(weight_row), *bias = static_cast<const T*>(bias_row);
  const float count = static_cast<float>(n);
  for (int64_t r = 0; r < rows; ++r) {
    const T* x = static_cast<const T*>(x_rows) + r * n;
    T* y = static_cast<T*>(y_rows) + r * n;
    const VF zero = hn::Zero(DF());
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
template <int kTogether, typename T>
void backward_rows(const T* dy, const T* x, const T* weight, const T* means, const T* rstds, T* dx,
                   float* dweight, float* dbias, int64_t n) {
  const float count = static_cast<float>(n);
  VF mean[kTogether], rstd[kTogether], mean_g[kTogether], mean_gh[kTogether];
  for (int r = 0; r < kTogether; ++r) {
    mean[r] = splat(get(means[r]));
    rstd[r] = splat(get(rstds[r]));
    const VF zero = hn::Zero(DF());
    VF sum_g[4] = {zero, zero, zero, zero}, sum_gh[4] = {zero, zero, zero, zero};
    each_vector_4(n, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
      const VF g = hn::Mul(w.load(dy + r * n + i), w.load(weight + i));
      const VF h = hn::Mul(hn::Sub(w.load(x + r * n + i), mean[r]), rstd[r]);
      sum_g[slot] = hn::Add(sum_g[slot], g);
      sum_gh[slot] = hn::MulAdd(g, w.keep(h), sum_gh[slot]);
    });
    mean_g[r] = splat(sum_4(sum_g) / count);
    mean_gh[r] = splat(sum_4(sum_gh) / count);
  }
  each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    const VF scale = w.load(weight + i);
    VF dw = w.load(dweight + i), db = w.load(dbias + i);
    for (int r = 0; r < kTogether; ++r) {
      const VF d = w.load(dy + r * n + i);
      const VF h = hn::Mul(hn::Sub(w.load(x + r * n + i), mean[r]), rstd[r]);
      dw = hn::MulAdd(d, h, dw);
      db = hn::Add(db, d);
      const VF inner = hn::NegMulAdd(h, mean_gh[r], hn::Sub(hn::Mul(d, scale), mean_g[r]));
      w.store(hn::Mul(rstd[r], inner), dx + r * n + i);
    }
    w.store(dw, dweight + i);
    w.store(db, dbias + i);
  });
}

template <typename T>
void backward(const void* dy, const void* x, const void* weight, const void* mean, const void* rstd,
              void* dx, float* dweight, float* dbias, bool add, int64_t rows, int64_t n) {
  constexpr int kTogether = 4;
  if (!add) {
    std::fill_n(dweight, n, 0.0f);
    std::fill_n(dbias, n, 0.0f);
  }
  auto run = [&](auto function, int64_t r) {
    function(static_cast<const T*>(dy) + r * n, static_cast<const T*>(x) + r * n,
             static_cast<const T*>(weight), static_cast<const T*>(mean) + r,
             static_cast<const T*>(rstd) + r, static_cast<T*>(dx) + r * n, dweight, dbias, n);
  };
  int64_t r = 0;
  for (; r + kTogether <= rows; r += kTogether) run(&backward_rows<kTogether, T>, r);
  for (; r < rows; ++r) run(&backward_rows<1, T>, r);
}

template <typename T>
void combine(const float* chunks, int64_t count, int64_t stride, void* out, int64_t n) {
  each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    VF total = hn::Zero(DF());
    for (int64_t c = 0; c < count; ++c) total = hn::Add(total, w.load(chunks + c * stride + i));
    w.store(total, static_cast<T*>(out) + i);
  });
}

constexpr LayerNormRows kTable[] = {{&forward<float>, &backward<float>, &combine<float>},
                                    {&forward<Bf16>, &backward<Bf16>, &combine<Bf16>}};

}  // namespace

const LayerNormRows& layer_norm_table(bool bf16) { return kTable[bf16]; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(layer_norm_table);
const LayerNormRows& layer_norm_rows(bool bf16) {
  return HWY_DYNAMIC_DISPATCH(layer_norm_table)(bf16);
}
}  // namespace brrr::cpu
#endif
