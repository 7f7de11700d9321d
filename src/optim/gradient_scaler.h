#pragma once
// The dynamic loss scale that f16 gradients need, as part of the graph: the loss is multiplied
// before it is differentiated, gradients are divided before they are clipped, a step whose
// gradients overflowed is skipped and halves the scale, and a run of good steps doubles it
// (Micikevicius et al. 2018, section 3.2; the constants are those of torch.amp.GradScaler).

#include <string>

#include "ir/graph.h"

namespace brrr::optim {

struct GradientScaler {
  double initial = 65536;
  double growth = 2, backoff = 0.5;
  int64_t growth_interval = 2000;  // good steps before the scale grows
};

/// States of the scaler, kept in checkpoints: f32[], i32[], i32[].
inline constexpr const char* kScaleState = "scaler:scale";
inline constexpr const char* kGoodStepsState = "scaler:good_steps";
inline constexpr const char* kSkippedStepsState = "scaler:skipped_steps";

inline constexpr const char* kScaledLoss = "scaled_loss";  // an output

/// Adds the output "scaled_loss" = output `loss` * scale, to be differentiated, and returns its
/// name.
std::string attach_scaled_loss(Graph& graph, const std::string& loss);

/// The scale and the skipped steps so far, as attach_scaled_loss has made them.
Value current_scale(Graph& graph);
Value skipped_steps(Graph& graph);

/// Appends the scale's next value. finite: bool[], whether this step's gradients are.
void update_scaler(Graph& graph, const GradientScaler& options, Value finite);

}  // namespace brrr::optim
