#pragma once
// An optimizer on a differentiated graph: unscale, clip by global norm, then nodes that update
// every parameter and its states, each over many tensors. Which optimizer it is, and with which
// numbers, is one record; what each does stands in a file of its own (updates.h).

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "optim/gradient_scaler.h"

namespace brrr::optim {

enum class OptimizerKind { adamw, adamw_8bit, sgd, lion, adafactor, muon };

/// The names of --optim: canonical first, then how others call the same.
struct OptimizerName {
  OptimizerKind kind;
  std::vector<std::string> spellings;
};
const std::vector<OptimizerName>& optimizer_names();
const std::string& name_of(OptimizerKind kind);
/// By canonical name; InternalError for another.
OptimizerKind optimizer_kind(std::string_view name);

struct Optimizer {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // only on parameters with two or more axes
  double momentum = 0.9;      // of sgd
  double muon_rate = 20;      // muon: the learning rate of hidden matrices, in units of the others'
  DType muon_products = DType::f32;      // what muon's Newton-Schulz iterations are computed in
  bool scale_parameter = true;           // adafactor: steps relative to the size of the parameter
  double max_grad_norm = 1.0;            // 0: no clipping
  bool fused = true;                     // false (adamw): element-wise ops for each tensor
  std::optional<GradientScaler> scaler;  // the loss was scaled by attach_scaled_loss
};

/// What one run of a program does with the gradients when a step has several micro-batches.
enum class Accumulation { none, first, middle, last };

/// Consumes the gradients of the parameters (Output::gradient_of). For none and last: appends the
/// update of all parameters and of their states ("adam_m:<parameter>", ...); data inputs
/// "learning_rate" f32[], "optimizer_step" i32[] (from 1) and, where parameters are bf16,
/// "rounding_key" i32[2]; output "grad_norm" f32[], unscaled, before clipping. Where it is not
/// finite the step changes no parameter and no state. For first and middle: only collects into the
/// states "grad_sum:<parameter>"; last adds them in.
void attach_optimizer(Graph& graph, const Optimizer& options,
                      Accumulation accumulation = Accumulation::none);

}  // namespace brrr::optim
