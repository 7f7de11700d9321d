#include "backend/cpu/rows/cross_entropy_rows.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows/cross_entropy_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/vmath-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kBlock = 1024;  // elements that stay in L1 between finding the max and the sum

/// Whether any element is NaN (a block without a number above -inf must not hide one).
template <typename T>
bool any_nan(const T* x, int64_t n) {
  bool found = false;
  each_vector(n, [&](auto w, int64_t i)
                     BRRR_INLINE_BODY { found |= !hn::AllFalse(DF(), hn::IsNaN(w.load(x + i))); });
  return found;
}

template <typename T>
ExpSum exp_sum(const void* row, int64_t n) {
  const T* x = static_cast<const T*>(row);
  const VF lowest = splat(-kInfinity), zero = hn::Zero(DF());
  ExpSum out{-kInfinity, 0.0};
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const T* block = x + begin;
    const int64_t count = std::min(kBlock, n - begin);
    VF top[4] = {lowest, lowest, lowest, lowest};
    each_vector_4(count, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
      // The next block is fetched while this one is reduced.
      __builtin_prefetch(block + i + kBlock, 0, 3);
      top[slot] = hn::Max(top[slot], w.load_or(block + i, lowest));
    });
    const float largest = max_4(top);
    if (largest > out.largest) {
      if (out.sum != 0) {
        out.sum *= std::exp(static_cast<double>(out.largest) - static_cast<double>(largest));
      }
      out.largest = largest;
    } else if (out.largest == -kInfinity) {
      if (any_nan(block, count)) out.sum = std::numeric_limits<double>::quiet_NaN();
      continue;
    }
    const VF shift = splat(out.largest);
    VF total[4] = {zero, zero, zero, zero};
    each_vector_4(count, [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
      total[slot] =
          hn::Add(total[slot], w.keep(exp_nonpositive(hn::Sub(w.load(block + i), shift))));
    });
    out.sum += static_cast<double>(sum_4(total));
  }
  // A row of -inf: e^(-inf - -inf).
  if (out.largest == -kInfinity && n > 0) out.sum = std::numeric_limits<double>::quiet_NaN();
  return out;
}

template <typename In, typename Out>
void probabilities(const void* row, float shift_by, float scale, void* out, int64_t n) {
  const In* x = static_cast<const In*>(row);
  Out* y = static_cast<Out*>(out);
  const VF shift = splat(shift_by), factor = splat(scale);
  each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    __builtin_prefetch(x + i + kBlock, 1, 3);
    w.store(hn::Mul(factor, exp(hn::Sub(w.load(x + i), shift))), y + i);
  });
}

constexpr CrossEntropyRows kTable[] = {{&exp_sum<float>, &probabilities<float, float>},
                                       {&exp_sum<Bf16>, &probabilities<Bf16, Bf16>}};

}  // namespace

const CrossEntropyRows& cross_entropy_table(bool bf16) { return kTable[bf16]; }
ProbabilitiesFunction probabilities_table(DType y) {
  if (y == DType::f32) return &probabilities<float, float>;
  return y == DType::bf16 ? &probabilities<float, Bf16> : &probabilities<float, F16>;
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(cross_entropy_table);
const CrossEntropyRows& cross_entropy_rows(bool bf16) {
  return HWY_DYNAMIC_DISPATCH(cross_entropy_table)(bf16);
}
HWY_EXPORT(probabilities_table);
ProbabilitiesFunction probabilities_as(DType y) {
  BRRR_CHECK(is_compute_float(y), "probabilities as {}", name_of(y));
  return HWY_DYNAMIC_DISPATCH(probabilities_table)(y);
}
}  // namespace brrr::cpu
#endif
