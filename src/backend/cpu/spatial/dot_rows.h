#pragma once
// Sums of products along rows, on one thread: for a weight that is read once and multiplied by a
// few rows only, so that neither packing it nor a tile of many columns would repay.

#include <cstdint>

#include "base/dtype.h"

namespace brrr::cpu {

struct DotRows {
  int64_t lanes;  // floats of a vector
  /// y[i * ldy + j] = the sum over t in [0, terms) of a[i, t] * b[j, t], in f32, for rows i in
  /// [0, rows) of a and j in [0, columns) of b. a: [rows, terms], b: [columns, terms], of f32, bf16
  /// or f16. Each lane of a vector sums every lanes-th term in order, then the lanes are added in
  /// order, so the bits of an element depend on its two rows and the instruction set alone.
  void (*multiply)(DType dtype, const void* a, int64_t rows, const void* b, int64_t columns,
                   int64_t terms, float* y, int64_t ldy);
};
/// Those of the instruction set in use.
const DotRows& dot_rows();

}  // namespace brrr::cpu
