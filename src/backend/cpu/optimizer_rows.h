#pragma once
// The inner loops of the optimizer: AdamW on a run of elements, and sums of squares.

#include <cstdint>

namespace brrr::cpu {

/// What one AdamW step has in common for all elements of a parameter.
struct AdamwStep {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float scale;       // of the gradient
  float keep;        // 1 - lr decay
  float step_size;   // lr / (1 - beta1^t)
  float correction;  // 1 / sqrt(1 - beta2^t)
  float eps;
};

struct OptimizerRows {
  /// Outputs may be the inputs of the same name.
  void (*adamw)(const AdamwStep& step, const float* param, const float* grad, const float* m,
                const float* v, float* new_param, float* new_m, float* new_v, int64_t n);
  double (*sum_of_squares)(const void* x, int64_t n);  // f32
  double (*sum_of_squares_bf16)(const void* x, int64_t n);
  /// y: [n] += x: [n]
  void (*add_to)(const float* x, float* y, int64_t n);
};
const OptimizerRows& optimizer_rows();

}  // namespace brrr::cpu
