#pragma once
// layer_norm, rms_norm (rows that are not centred) and their derivatives, of some rows on one
// thread; f32 arithmetic whatever the element type.

#include <cstdint>

#include "base/dtype.h"

namespace brrr::cpu {

/// Without centring there are no bias, mean and dbias: those pointers are not used.
struct NormRows {
  /// x, y: [rows, n], y may be x; weight, bias: [n]; mean, rstd: [rows].
  void (*forward)(const void* x, const void* weight, const void* bias, float eps, void* y,
                  void* mean, void* rstd, int64_t rows, int64_t n);
  /// dy, x, dx: [rows, n], dx may be dy or x; weight: [n]; mean, rstd: [rows]. Writes the sums over
  /// these rows to dweight and dbias: [n] f32, or adds them to what is there, row by row.
  void (*backward)(const void* dy, const void* x, const void* weight, const void* mean,
                   const void* rstd, void* dx, float* dweight, float* dbias, bool add, int64_t rows,
                   int64_t n);
  /// out: [n] of the element type = the sum of chunks: [count, n] f32, `stride` apart, in order.
  void (*combine)(const float* chunks, int64_t count, int64_t stride, void* out, int64_t n);
};
/// For f32, bf16 and f16.
const NormRows& norm_rows(DType dtype, bool centred);

}  // namespace brrr::cpu
