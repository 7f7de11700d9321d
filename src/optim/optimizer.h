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

/// How gradients are summed over the micro-batches and the ranks of a step. A step has slots, the
/// same for any number of ranks, and a slot has micro-batches. The gradients of a slot are summed
/// in order, those of the slots in one binary tree in f32; a rank has a subtree.
struct GradientSums {
  int64_t slots = 1;  // of all ranks; 1: no tree
  int64_t ranks = 1;
  int zero = 0;  // ZeRO's stage: 1 divides the states, 2 the gradients, 3 the parameters, too

  /// What one run of a program does.
  bool continues_slot = false;  // adds to what its slot has summed
  bool ends_slot = true;
  int64_t merged = 0;     // this slot's sum is added to those of so many levels of the tree
  bool ends_step = true;  // updates the parameters
  /// Whether buffers, such as the running statistics of batch norm, take their next values. With
  /// several slots the first one sets them, whatever the number of ranks.
  bool updates_buffers = true;

  GradientSums() = default;
  GradientSums(Accumulation a)  // NOLINT: one slot on one rank
      : continues_slot(a == Accumulation::middle || a == Accumulation::last),
        ends_slot(a == Accumulation::none || a == Accumulation::last),
        ends_step(ends_slot) {}
  bool operator==(const GradientSums&) const = default;
};

/// Consumes the gradients of the parameters (Output::gradient_of). At the end of a step: appends
/// the update of all parameters and of their states ("adam_m:<parameter>", ...); data inputs
/// "learning_rate" f32[], "optimizer_step" i32[] (from 1) and, where parameters are bf16,
/// "rounding_key" i32[2]; output "grad_norm" f32[], unscaled, before clipping. Where it is not
/// finite the step changes no parameter and no state. Before the end of a step: only collects into
/// the states "grad_sum:<parameter>", of a slot, and "grad_sum_<level>:<parameter>", of the tree.
/// Parameters that lie in shards (passes/ranks/shard.h) are updated shard by shard.
void attach_optimizer(Graph& graph, const Optimizer& options, const GradientSums& sums = {});

}  // namespace brrr::optim
