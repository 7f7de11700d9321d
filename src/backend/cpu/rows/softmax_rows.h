#pragma once
// softmax and softmax_grad of some rows on one thread; f32 arithmetic whatever the element type.

#include <cstdint>

#include "base/dtype.h"

namespace brrr::cpu {

struct SoftmaxRows {
  /// x, y: [rows, n], y may be x.
  void (*forward)(const void* x, void* y, int64_t rows, int64_t n);
  /// dy, y, dx: [rows, n], dx may be dy or y.
  void (*backward)(const void* dy, const void* y, void* dx, int64_t rows, int64_t n);
};
/// `dtype`: f32, bf16 or f16.
const SoftmaxRows& softmax_rows(DType dtype);

}  // namespace brrr::cpu
