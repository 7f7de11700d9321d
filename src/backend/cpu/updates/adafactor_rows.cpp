#include "backend/cpu/updates/adafactor_rows.h"

#include <algorithm>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/updates/adafactor_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

/// The sum over [0, n) of what body(access, i) gives, f32 within blocks, f64 between them.
template <typename Body>
HWY_INLINE double blocked_sum(int64_t n, Body&& body) {
  constexpr int64_t kBlock = 1024;
  const VF zero = hn::Zero(DF());
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    VF s[4] = {zero, zero, zero, zero};
    each_vector_4(std::min(kBlock, n - begin), [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
      s[slot] = hn::Add(s[slot], body(w, begin + i));
    });
    total += static_cast<double>(sum_4(s));
  }
  return total;
}

double square_sums(const float* g, float scale, float* columns, int64_t n) {
  const VF factor = splat(scale);
  return blocked_sum(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    const VF x = hn::Mul(factor, w.load(g + i)), square = hn::Mul(x, x);
    w.store(hn::Add(w.load(columns + i), square), columns + i);
    return square;
  });
}

double weighted_squares(const float* g, float scale, const float* weights, int64_t n) {
  const VF factor = splat(scale);
  return blocked_sum(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    const VF x = hn::Mul(factor, w.load(g + i));
    return hn::Mul(hn::Mul(x, x), w.load(weights + i));
  });
}

void step(const float* p, const float* g, const float* weights, float keep, float size, float* y,
          int64_t n) {
  const VF kept = splat(keep), factor = splat(size);
  each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    const VF u = hn::Mul(hn::Mul(factor, w.load(g + i)), w.load(weights + i));
    w.store(hn::MulSub(w.load(p + i), kept, u), y + i);
  });
}

constexpr AdafactorRows kTable = {&square_sums, &weighted_squares, &step};

}  // namespace

const AdafactorRows& adafactor_table() { return kTable; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(adafactor_table);
const AdafactorRows& adafactor_rows() { return HWY_DYNAMIC_DISPATCH(adafactor_table)(); }
}  // namespace brrr::cpu
#endif
