#include "optim/gradient_scaler.h"

#include "ops/ops.h"

namespace brrr::optim {
namespace {

Value state_of(Graph& g, const char* name, DType dtype) {
  const NodeId found = g.find_input(name);
  return found != kNoNode ? g.value(found) : g.input(name, {}, dtype, Role::loss_scale);
}

}  // namespace

Value current_scale(Graph& g) { return state_of(g, kScaleState, DType::f32); }
Value skipped_steps(Graph& g) { return state_of(g, kSkippedStepsState, DType::i32); }

std::string attach_scaled_loss(Graph& g, const std::string& loss) {
  const Output* out = g.find_output(loss);
  BRRR_CHECK(out != nullptr, "the graph has no output '{}'", loss);
  const ValueId value = out->value;
  g.output(kScaledLoss, g.value(value) * current_scale(g));
  return kScaledLoss;
}

void update_scaler(Graph& g, const GradientScaler& options, Value finite) {
  Value scale = current_scale(g), skipped = skipped_steps(g);
  Value good = state_of(g, kGoodStepsState, DType::i32);
  auto integer = [&](int64_t x) { return scalar(g, x, DType::i32); };
  Value run = where(finite, good + 1.0, integer(0));
  Value grows = greater_equal(run, integer(options.growth_interval));
  Value larger = where(grows, scale * options.growth, scale);
  g.update(scale, where(finite, larger, scale * options.backoff));
  g.update(good, where(grows, integer(0), run));
  g.update(skipped, where(finite, skipped, skipped + 1.0));
}

}  // namespace brrr::optim
