#pragma once
// The inner loops of the element-wise optimizers on a run of elements, sums of squares, and what
// stands between f32 arithmetic and 16-bit parameters and gradients.

#include <cstdint>

#include "base/rng.h"

namespace brrr::cpu {

/// A run of n elements. Results may lie over the operands of the same name.
struct UpdateRun {
  const float* param = nullptr;
  const float* grad = nullptr;
  const float* state[2] = {};
  float* new_param = nullptr;
  float* new_state[2] = {};
  uint16_t* copy = nullptr;  // where the new parameter goes in 16 bits, too
  bool copy_is_f16 = false;  // else bf16
  int64_t n = 0;
};

/// What one step has in common for all elements of a parameter. `scale` is that of the gradient,
/// `keep` is 1 - lr decay.
struct AdamwStep {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float scale, keep;
  float step_size;   // lr / (1 - beta1^t)
  float correction;  // 1 / sqrt(1 - beta2^t)
  float eps;
};
struct SgdStep {
  float momentum, scale, decay, lr;
};
struct LionStep {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float scale, keep, lr;
};
struct MuonStep {
  float keep, step_size;
};

struct OptimizerRows {
  void (*adamw)(const AdamwStep& step, const UpdateRun& run);
  void (*sgd)(const SgdStep& step, const UpdateRun& run);
  void (*lion)(const LionStep& step, const UpdateRun& run);
  void (*muon)(const MuonStep& step, const UpdateRun& run);
  /// state' = momentum state + decay scale grad; new_param = momentum state' + decay scale grad.
  void (*muon_momentum)(const SgdStep& step, const UpdateRun& run);
  double (*sum_of_squares)(const void* x, int64_t n);  // f32
  double (*sum_of_squares_bf16)(const void* x, int64_t n);
  /// y: [n] += x: [n]
  void (*add_to)(const float* x, float* y, int64_t n);
  /// y: [n] f32 = x: [n] bf16
  void (*widen)(const uint16_t* x, float* y, int64_t n);
  /// y: [n] f16 or bf16 = x: [n] f32, to nearest even
  void (*narrow)(const float* x, bool is_f16, uint16_t* y, int64_t n);
  /// y: [n] bf16 = x: [n] rounded up or down by the 16 random bits of each (ops/update.h)
  void (*round_at_random)(const float* x, const uint16_t* random, uint16_t* y, int64_t n);
};
const OptimizerRows& optimizer_rows();

}  // namespace brrr::cpu
