#include "backend/cpu/rows/reduction_rows.h"

#include <algorithm>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows/reduction_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

template <Fold kFold>
HWY_INLINE VF fold(VF a, VF b) {
  if constexpr (kFold == Fold::kSum) {
    return hn::Add(a, b);
  } else {
    // NaN if either is.
    const auto is_better = kFold == Fold::kMax ? hn::Lt(a, b) : hn::Lt(b, a);
    return hn::IfThenElse(hn::IsNaN(b), b, hn::IfThenElse(is_better, b, a));
  }
}

template <Fold kFold, typename T>
double run(const void* data, int64_t n) {
  constexpr int64_t kBlock = 2048;
  constexpr bool kIsSum = kFold == Fold::kSum;
  const T* x = static_cast<const T*>(data);
  const VF start = splat(kIsSum ? 0.0f : kFold == Fold::kMax ? -kInfinity : kInfinity);
  double total = 0;
  VF s[4] = {start, start, start, start};
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const T* block = x + begin;
    each_vector_4(std::min(kBlock, n - begin), [&](auto w, int64_t i, int slot) BRRR_INLINE_BODY {
      s[slot] = fold<kFold>(s[slot], w.load_or(block + i, start));
    });
    if constexpr (kIsSum) {
      total += static_cast<double>(sum_4(s));
      for (VF& v : s) v = start;
    }
  }
  if constexpr (kIsSum) return total;
  const VF all = fold<kFold>(fold<kFold>(s[0], s[1]), fold<kFold>(s[2], s[3]));
  if (!hn::AllFalse(DF(), hn::IsNaN(all))) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(kFold == Fold::kMax ? max_lanes(all)
                                                 : hn::GetLane(hn::MinOfLanes(DF(), all)));
}

/// Rows from `at` on, `kRows` of them, as the tree of eight whose other rows are absent.
template <int kRows, int kSpan, Fold kFold, typename Load>
HWY_INLINE VF fold_tree(const Load& load, int64_t at) {
  if constexpr (kSpan == 1) {
    return load(at);
  } else if constexpr (kRows <= kSpan / 2) {
    return fold_tree<kRows, kSpan / 2, kFold>(load, at);
  } else {
    return fold<kFold>(fold_tree<kSpan / 2, kSpan / 2, kFold>(load, at),
                       fold_tree<kRows - kSpan / 2, kSpan / 2, kFold>(load, at + kSpan / 2));
  }
}

template <int kRows, Fold kFold, typename T>
HWY_INLINE void fold_rows(const T* x, int64_t stride, float* y, int64_t n, bool add) {
  each_vector(n, [&](auto w, int64_t i) BRRR_INLINE_BODY {
    const auto load = [&](int64_t r) BRRR_INLINE_BODY { return w.load(x + r * stride + i); };
    const VF v = fold_tree<kRows, 8, kFold>(load, 0);
    w.store(add ? fold<kFold>(w.load(y + i), v) : v, y + i);
  });
}

/// Up to kMost rows, together.
template <int kMost, Fold kFold, typename T>
void fold_rest(const T* x, int64_t rows, int64_t stride, float* y, int64_t n, bool add) {
  if (rows == kMost) return fold_rows<kMost, kFold>(x, stride, y, n, add);
  if constexpr (kMost > 1) fold_rest<kMost - 1, kFold>(x, rows, stride, y, n, add);
}

/// Eight rows at a time, as a tree, so that y is loaded and stored once for all of them. Zeros
/// behind the last row change no bit of a sum.
template <Fold kFold, typename T>
void columns(const void* data, int64_t rows, int64_t stride, float* y, int64_t n, bool add) {
  const T* x = static_cast<const T*>(data);
  int64_t r = 0;
  for (; r + 8 <= rows; r += 8, add = true) fold_rows<8, kFold>(x + r * stride, stride, y, n, add);
  fold_rest<7, kFold>(x + r * stride, rows - r, stride, y, n, add);
}

template <Fold kFold, typename T>
constexpr ReductionRows kRowsOf = {&run<kFold, T>, &columns<kFold, T>};
template <Fold kFold>
const ReductionRows& rows_of_fold(DType dtype) {
  return dtype == DType::f32    ? kRowsOf<kFold, float>
         : dtype == DType::bf16 ? kRowsOf<kFold, Bf16>
                                : kRowsOf<kFold, F16>;
}

}  // namespace

const ReductionRows& reduction_table(Fold fold, DType dtype) {
  return fold == Fold::kSum   ? rows_of_fold<Fold::kSum>(dtype)
         : fold == Fold::kMax ? rows_of_fold<Fold::kMax>(dtype)
                              : rows_of_fold<Fold::kMin>(dtype);
}

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(reduction_table);
const ReductionRows& reduction_rows(Fold fold, DType dtype) {
  return HWY_DYNAMIC_DISPATCH(reduction_table)(fold, dtype);
}
}  // namespace brrr::cpu
#endif
