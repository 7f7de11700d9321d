#include "optim/optimizer.h"

#include <cmath>
#include <map>
#include <numeric>

#include "ops/op.h"
#include "ops/ranks/collectives.h"
#include "optim/gradient_sums.h"
#include "optim/updates.h"

namespace brrr::optim {

const std::vector<OptimizerName>& optimizer_names() {
  using K = OptimizerKind;
  static const std::vector<OptimizerName> names = {
      {K::adamw, {"adamw", "adamw_torch", "adamw_torch_fused"}},
      {K::adamw_8bit, {"adamw_8bit", "adamw_bnb_8bit"}},
      {K::sgd, {"sgd"}},
      {K::lion, {"lion", "lion_32bit"}},
      {K::adafactor, {"adafactor"}},
      {K::muon, {"muon"}}};
  return names;
}

const std::string& name_of(OptimizerKind kind) {
  for (const OptimizerName& n : optimizer_names())
    if (n.kind == kind) return n.spellings[0];
  check_failed(__FILE__, __LINE__, "the optimizer has a name", "");
}

OptimizerKind optimizer_kind(std::string_view name) {
  for (const OptimizerName& n : optimizer_names())
    if (n.spellings[0] == name) return n.kind;
  check_failed(__FILE__, __LINE__, "the optimizer exists", std::string(name));
}

Value Update::state(const std::string& kind, const Trained& t, std::optional<Type> type) {
  const Type wanted = type.value_or(Type{DType::f32, t.param.shape()});
  Attrs more;
  if (is_shard(t.param)) {
    // A state with one number for several elements is divided as these are.
    Shape whole = whole_shape(t.param);
    const int64_t together = t.param.shape().elements() / wanted.shape.elements();
    if (together > 1) whole = Shape{ceil_div(whole.elements(), together)};
    more.set(kShardOf, whole);
    more.set(kShardRanks, ranks_of_shard(t.param));
  }
  return g.input(fmt::format("{}:{}", kind, t.name), wanted, Role::moment, std::move(more));
}

void Update::append_node(Op op, const Group& group, const std::vector<std::vector<State>>& kinds,
                         Attrs attrs) {
  if (group.empty()) return;
  const size_t n = group.size(), count = kinds[0].size();
  std::vector<Value> operands{learning_rate, step, scale};
  bool at_random = false;
  for (const Trained& t : group) at_random = at_random || t.param.dtype() == DType::bf16;
  if (at_random) {
    const NodeId key = g.find_input("rounding_key");
    operands.push_back(key != kNoNode ? g.value(key) : g.input("rounding_key", {2}, DType::i32));
    attrs.set("stream", next_stream);
    next_stream += static_cast<int64_t>(n);
  }
  for (const Trained& t : group) operands.push_back(t.param);
  for (const Trained& t : group) operands.push_back(t.grad);
  std::vector<Value> states(count * n);  // all of the first kind, all of the second, ...
  for (size_t i = 0; i < n; ++i)
    for (size_t k = 0; k < count; ++k)
      states[k * n + i] = state(kinds[i][k].kind, group[i], kinds[i][k].type);
  operands.insert(operands.end(), states.begin(), states.end());
  std::vector<int64_t> decays;
  for (const Trained& t : group) decays.push_back(t.decays);
  attrs.set("decays", std::move(decays));
  attrs.set("weight_decay", options.weight_decay);
  const auto next = call(op, operands, std::move(attrs));
  for (size_t i = 0; i < n; ++i) {
    if (group[i].shard.graph != nullptr)
      g.update(group[i].shard, own_shard(next[i], ranks_of_shard(group[i].shard)));
    else
      g.update(group[i].param, next[i]);
    for (size_t k = 0; k < count; ++k) g.update(states[k * n + i], next[(1 + k) * n + i]);
  }
}

Value in_f32(Value v) {
  if (v.dtype() == DType::f32) return v;
  const Node node = v.graph->node(v.id.node);
  if (is(node, Op::cast) && v.graph->type(node.operands[0]).dtype == DType::f32)
    return v.graph->value(node.operands[0]);
  if (node.op->only_adds && node.op->op_class == OpClass::elementwise)
    return in_f32(v.graph->value(node.operands[0])) + in_f32(v.graph->value(node.operands[1]));
  // What only moves numbers, or sums rows, does the same in f32.
  const bool only_moves = node.op->op_class == OpClass::movement && !is(node, Op::cast);
  if (node.op->only_adds || (only_moves && node.operands.size() == 1)) {
    std::vector<Value> operands{in_f32(v.graph->value(node.operands[0]))};
    for (size_t i = 1; i < node.operands.size(); ++i)
      operands.push_back(v.graph->value(node.operands[i]));
    return call(*node.op, operands, node.attrs)[v.id.port];
  }
  return cast(v, DType::f32);
}

namespace {

// Streams of dropout are small numbers; those of rounding begin here.
constexpr int64_t kRoundingStreams = int64_t{1} << 31;

// The parameters and their gradients, whose outputs are taken out of the graph.
Group take_gradients(Graph& g) {
  Group group;
  std::map<NodeId, ValueId> gradients;
  for (const Output& o : g.outputs())
    if (o.gradient_of != kNoNode) gradients[o.gradient_of] = o.value;
  for (NodeId id : g.inputs(InputKind::parameter)) {
    if (!g.is_trained(id)) continue;
    const auto found = gradients.find(id);
    BRRR_CHECK(found != gradients.end(), "{} has no gradient", g.input_name(id));
    group.push_back({g.value(id), g.value(found->second), g.input_name(id), g.is_decayed(id)});
  }
  std::erase_if(g.outputs(),
                [](const Output& o) { return o.gradient_of != kNoNode || o.name == kScaledLoss; });
  if (group.empty()) user_error("[optimizer] the graph has no parameters to train");
  return group;
}

// Of all gradients: one node, or the sums of squares of each tensor.
Value norm_of(Graph& g, const Group& group, bool fused) {
  std::vector<Value> grads;
  for (const Trained& t : group) grads.push_back(t.grad);
  if (fused) return global_norm(grads);
  Value total = scalar(g, 0);
  for (const Value& grad : grads) {
    std::vector<int64_t> axes(static_cast<size_t>(grad.shape().rank()));
    std::iota(axes.begin(), axes.end(), 0);
    total = total + sum(square(in_f32(grad)), axes);
  }
  return sqrt(total);
}

// What gradients are multiplied by: unscaling and clipping; NaN where they are not finite.
Value gradient_scale(Graph& g, const Optimizer& options, Value norm) {
  Value finite = less(norm, scalar(g, INFINITY)), scale = scalar(g, 1);
  if (options.max_grad_norm > 0)  // as torch.nn.utils.clip_grad_norm_
    scale = minimum(scale, scalar(g, options.max_grad_norm) / (norm + 1e-6));
  if (options.scaler) {
    scale = scale / current_scale(g);
    update_scaler(g, *options.scaler, finite);
  }
  return where(finite, scale, scalar(g, NAN));  // the update leaves everything as it is
}

void append_update(Update& u, const Group& group) {
  switch (u.options.kind) {
    case OptimizerKind::adamw:
      return u.options.fused ? update_by_adamw(u, group) : update_by_plain_adamw(u, group);
    case OptimizerKind::adamw_8bit:
      return update_by_adamw_8bit(u, group);
    case OptimizerKind::sgd:
      return update_by_sgd(u, group);
    case OptimizerKind::lion:
      return update_by_lion(u, group);
    case OptimizerKind::adafactor:
      return update_by_adafactor(u, group);
    case OptimizerKind::muon:
      return update_by_muon(u, group);
  }
}

}  // namespace

void attach_optimizer(Graph& g, const Optimizer& options, const GradientSums& sums) {
  g.set_scope("", Phase::optimizer);
  Group group = take_gradients(g);
  sum_gradients(g, group, sums);
  if (sums.ends_step) {
    Value norm = sums.slots > 1 || sums.ranks > 1 ? norm_of_shards(group, sums)
                                                  : norm_of(g, group, options.fused);
    Value step = g.input("optimizer_step", {}, DType::i32);
    if (options.scaler) {
      norm = norm / current_scale(g);
      step = step - skipped_steps(g);
    }
    g.output("grad_norm", norm);
    const Value scale = gradient_scale(g, options, norm);
    Update update{g,    options, g.input("learning_rate", {}, DType::f32),
                  step, scale,   kRoundingStreams};
    append_update(update, group);
  }
  g.set_scope("");
}

}  // namespace brrr::optim
