#include "backend/cpu/optimizer_rows.h"

#include <algorithm>

#include "backend/cpu/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

void adamw(const AdamwStep& s, const float* param, const float* grad, const float* m,
           const float* v, float* new_param, float* new_m, float* new_v, int64_t n) {
  const VF beta1 = splat(s.beta1), rest1 = splat(s.one_minus_beta1), beta2 = splat(s.beta2);
  const VF rest2 = splat(s.one_minus_beta2), scale = splat(s.scale), keep = splat(s.keep);
  const VF step_size = splat(s.step_size), correction = splat(s.correction), eps = splat(s.eps);
  each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    constexpr int64_t kAhead =
        512;  // four streams are more than the hardware prefetcher follows well
    __builtin_prefetch(param + i + kAhead, 1, 3);
    __builtin_prefetch(grad + i + kAhead, 0, 3);
    __builtin_prefetch(m + i + kAhead, 1, 3);
    __builtin_prefetch(v + i + kAhead, 1, 3);
    const VF g = hn::Mul(scale, w.load(grad + i));
    const VF m1 = hn::MulAdd(beta1, w.load(m + i), hn::Mul(rest1, g));
    const VF v1 = hn::MulAdd(beta2, w.load(v + i), hn::Mul(hn::Mul(rest2, g), g));
    const VF below = hn::MulAdd(hn::Sqrt(v1), correction, eps);
    const VF step = hn::Div(hn::Mul(step_size, m1), below);
    const VF p1 = hn::MulSub(w.load(param + i), keep, step);
    w.store(p1, new_param + i);
    w.store(m1, new_m + i);
    w.store(v1, new_v + i);
  });
}

/// f32 within blocks, f64 between them.
template <typename T>
double sum_of_squares(const void* data, int64_t n) {
  constexpr int64_t kBlock = 1024;
  const T* x = static_cast<const T*>(data);
  const VF zero = hn::Zero(DF());
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const T* block = x + begin;
    VF s[4] = {zero, zero, zero, zero};
    each_vector_4(std::min(kBlock, n - begin), [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
      __builtin_prefetch(block + i + 1024, 0, 3);
      const VF value = w.load(block + i);
      s[slot] = hn::MulAdd(value, value, s[slot]);
    });
    total += static_cast<double>(sum_4(s));
  }
  return total;
}

void add_to(const float* x, float* y, int64_t n) {
  each_vector(n, [&](auto w, int64_t i)
                     BRRR_INLINE_BODY { w.store(hn::Add(w.load(y + i), w.load(x + i)), y + i); });
}

constexpr OptimizerRows kTable = {&adamw, &sum_of_squares<float>, &sum_of_squares<Bf16>, &add_to};

}  // namespace

const OptimizerRows& optimizer_table() { return kTable; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(optimizer_table);
const OptimizerRows& optimizer_rows() { return HWY_DYNAMIC_DISPATCH(optimizer_table)(); }
}  // namespace brrr::cpu
#endif
