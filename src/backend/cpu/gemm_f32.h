#pragma once
// Single-precision matrix multiplication, row-major: C = alpha * op(A) op(B) + beta * C + bias.
//
// Promises:
// - An element of C is computed by the same operations in the same order whatever the number of
//   threads, whatever m and n are and whichever path is taken: its bits depend on its row of op(A),
//   its column of op(B), k, alpha, beta, the bias and the instruction set alone. So one row
//   computed by itself (a decode step) equals the same row computed in a batch.
// - Sums are fp32: sequential over blocks of at most kGemmBlockK terms, the block sums then added
// in
//   order.
// - No allocation after a thread's first call; gemm_workspace_bytes() bounds what is kept.
// - Any size (0 included), any leading dimension that is at least the row length. C must not
// overlap
//   A, B or the bias. With beta = 0, C is not read.
// - Callable from any thread; inside an OpenMP region it runs on the calling thread alone.

#include <cstdint>

namespace brrr::cpu {

struct GemmArgs {
  int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;  // [m, k], or [k, m] when trans_a
  int64_t lda = 0;
  bool trans_a = false;
  const float* b = nullptr;  // [k, n], or [n, k] when trans_b
  int64_t ldb = 0;
  bool trans_b = false;
  float* c = nullptr;  // [m, n]
  int64_t ldc = 0;
  float alpha = 1.0f;
  float beta = 0.0f;            // 0 or 1
  const float* bias = nullptr;  // [n], added to every row, or null
};

inline constexpr int64_t kGemmBlockK = 512;

void gemm_f32(const GemmArgs& args);

/// `batch` products; the operands of product i start i * stride elements further (a stride of 0
/// shares A or B among all of them; the bias is always shared).
void gemm_f32_batched(const GemmArgs& args, int64_t batch, int64_t stride_a, int64_t stride_b,
                      int64_t stride_c);

/// Upper bound of the packing memory that the current number of threads keeps.
int64_t gemm_workspace_bytes();

}  // namespace brrr::cpu
