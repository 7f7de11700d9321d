#include "optim/adamw.h"

#include <cmath>

#include "ops/ops.h"

namespace brrr::optim {

void attach_adamw(Graph& g, const AdamW& options, Accumulation accumulation) {
  g.set_scope("optimizer");
  std::vector<Value> params, grads;
  std::vector<Output> kept;
  for (const Output& o : g.outputs())
    if ((!o.name.starts_with("grad:") && o.name != "scaled_loss") || o.updates != kNoNode)
      kept.push_back(o);
  for (NodeId id : g.inputs(InputKind::parameter)) {
    const Output* out = g.find_output("grad:" + g.input_name(id));
    BRRR_CHECK(out != nullptr, "{} has no gradient", g.input_name(id));
    params.push_back(g.value(id));
    grads.push_back(g.value(out->value));
  }
  g.outputs() = std::move(kept);
  if (params.empty()) user_error("[adamw] the graph has no parameters to train");

  auto state = [&](const char* kind, size_t i) {
    return g.input(fmt::format("{}:{}", kind, g.input_name(params[i].id.node)), params[i].shape(),
                   params[i].dtype(), InputKind::state);
  };
  if (accumulation != Accumulation::none) {
    for (size_t i = 0; i < grads.size(); ++i) {
      Value sum = state("grad_sum", i);
      if (accumulation != Accumulation::first) grads[i] = sum + grads[i];
      if (accumulation != Accumulation::last) g.update(sum, grads[i]);
    }
    if (accumulation != Accumulation::last) {
      g.set_scope("");
      return;
    }
  }

  Value norm = global_norm(grads), step = g.input("adam_step", {}, DType::i32);
  if (options.scaler) {
    norm = norm / current_scale(g);
    step = step - skipped_steps(g);
  }
  g.output("grad_norm", norm);
  Value finite = less(norm, scalar(g, INFINITY)), scale = scalar(g, 1);
  if (options.max_grad_norm > 0)  // as torch.nn.utils.clip_grad_norm_
    scale = minimum(scale, scalar(g, options.max_grad_norm) / (norm + 1e-6));
  if (options.scaler) {
    scale = scale / current_scale(g);
    update_scaler(g, *options.scaler, finite);
  }
  scale = where(finite, scale, scalar(g, NAN));  // adamw leaves everything as it is
  std::vector<Value> operands{g.input("learning_rate", {}, DType::f32), step, scale};
  std::vector<int64_t> decays;
  std::vector<Value> m, v;
  for (size_t i = 0; i < params.size(); ++i) {
    decays.push_back(params[i].shape().rank() >= 2);
    m.push_back(state("adam_m", i));
    v.push_back(state("adam_v", i));
  }
  for (const auto* list : {&params, &grads, &m, &v})
    operands.insert(operands.end(), list->begin(), list->end());
  const auto next = call("adamw", operands,
                         {{"beta1", options.beta1},
                          {"beta2", options.beta2},
                          {"eps", options.eps},
                          {"weight_decay", options.weight_decay},
                          {"decays", decays}});
  const size_t n = params.size();
  for (size_t i = 0; i < n; ++i) {
    g.update(params[i], next[i]);
    g.update(m[i], next[n + i]);
    g.update(v[i], next[2 * n + i]);
  }
  g.set_scope("");
}

}  // namespace brrr::optim
