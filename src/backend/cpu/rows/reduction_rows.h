#pragma once
// The two inner loops of a reduction, for sum, max and min: a contiguous run to one number, and
// rows of a matrix to one row. f32 arithmetic whatever the element type.

#include <cstdint>

#include "base/dtype.h"

namespace brrr::cpu {

enum class Fold { kSum, kMax, kMin };

struct ReductionRows {
  /// Folds x: [n]. Sums are f32 within blocks, whose sums are added in f64. The extreme of no
  /// elements is an infinity, and NaN if any element is NaN.
  double (*run)(const void* x, int64_t n);
  /// y: [n] f32 = the fold of x: [rows, n] with rows `stride` elements apart; of y too when `add`.
  void (*columns)(const void* x, int64_t rows, int64_t stride, float* y, int64_t n, bool add);
};
/// `dtype`: f32, bf16 or f16.
const ReductionRows& reduction_rows(Fold fold, DType dtype);

}  // namespace brrr::cpu
