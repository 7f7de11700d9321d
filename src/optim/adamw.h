#pragma once
// AdamW on a differentiated graph: clip by global norm, then one fused node that updates every
// parameter and its two moments.

#include <optional>
#include <string>

#include "ir/graph.h"
#include "optim/gradient_scaler.h"

namespace brrr::optim {

struct AdamW {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;             // only on parameters with two or more axes
  double max_grad_norm = 1.0;            // 0: no clipping
  std::optional<GradientScaler> scaler;  // the loss was scaled by attach_scaled_loss
};

/// What one run of a program does with the gradients when a step has several micro-batches.
enum class Accumulation { none, first, middle, last };

/// Consumes the outputs "grad:<parameter>". For none and last: appends the update of all parameters
/// and of the states "adam_m:<parameter>", "adam_v:<parameter>"; data inputs "learning_rate" f32[]
/// and "adam_step" i32[] (from 1); output "grad_norm" f32[], unscaled, before clipping. Where it is
/// not finite the step changes no parameter and no moment. For first and middle:
/// only collects into the states "grad_sum:<parameter>"; last adds them in.
void attach_adamw(Graph& graph, const AdamW& options,
                  Accumulation accumulation = Accumulation::none);

}  // namespace brrr::optim
