// Muon (Jordan et al. 2024, github.com/KellerJordan/Muon): hidden matrices move along
// orthogonalised momentum, everything else by AdamW. The learning rate of matrices is {rate} times
// that of AdamW, times sqrt(max(1, out / in)) of the matrix.

#include <set>

#include "ops/op.h"
#include "optim/updates.h"

namespace brrr::optim {
namespace {

constexpr double kMomentum = 0.95;
constexpr int64_t kIterations = 5;

// The parameter that a value is, however it was moved or converted.
NodeId parameter_behind(const Graph& g, ValueId v) {
  while (!g.is_input(v.node)) {
    const Node& node = g.node(v.node);
    const bool moves = node.op->op_class == OpClass::movement && node.operands.size() == 1;
    if (!moves && !is(node, Op::all_gather, Op::after)) return kNoNode;
    v = node.operands[0];
  }
  return g.input_kind(v.node) == InputKind::parameter ? v.node : kNoNode;
}

// Embeddings and the head: what is looked up in, cut from, or gives the logits.
std::set<NodeId> tables_of(const Graph& g) {
  std::set<NodeId> tables;
  for (const Node& node : g.nodes()) {
    if (node.op->part != OpDef::Part::whole) tables.insert(parameter_behind(g, node.operands[0]));
    if (!node.op->loss) continue;
    if (node.op->loss->from_product) {
      for (const ValueId& v : node.operands) tables.insert(parameter_behind(g, v));
      continue;
    }
    ValueId v = node.operands[0];  // the logits
    while (g.node(v.node).op->op_class == OpClass::movement) v = g.node(v.node).operands[0];
    if (g.node(v.node).op->product) tables.insert(parameter_behind(g, g.node(v.node).operands[1]));
  }
  return tables;
}

// Newton-Schulz multiplies whole matrices: the momentum of a shard is gathered, every rank
// computes the result and keeps its own part.
Value orthogonal(const Update& u, const Trained& t, Value momentum) {
  const Attrs attrs{{"steps", kIterations}, {"dtype", u.options.muon_products}};
  if (!is_shard(t.param)) return call1(Op::newton_schulz, {momentum}, attrs);
  const int64_t ranks = ranks_of_shard(t.param);
  const Value whole = all_gather(momentum, whole_shape(t.param), ranks, false);
  return own_shard(call1(Op::newton_schulz, {whole}, attrs), ranks);
}

}  // namespace

void update_by_muon(Update& u, const Group& group) {
  const std::set<NodeId> tables = tables_of(u.g);
  Group matrices, others;
  for (const Trained& t : group) {
    const bool hidden = whole_shape(t.param).rank() == 2 && !tables.contains(t.param.id.node);
    (hidden ? matrices : others).push_back(t);
  }
  if (!matrices.empty()) {
    std::vector<Value> operands{u.scale}, momenta;
    for (const Trained& t : matrices) operands.push_back(in_f32(t.grad));
    for (const Trained& t : matrices) momenta.push_back(u.state("muon_m", t));
    operands.insert(operands.end(), momenta.begin(), momenta.end());
    const auto next = call(Op::muon_momentum, operands, {{"momentum", kMomentum}});
    const size_t n = matrices.size();
    std::vector<int64_t> whole_shapes;
    bool any_shard = false;
    for (size_t i = 0; i < n; ++i) {
      u.g.update(momenta[i], next[n + i]);
      matrices[i].grad = orthogonal(u, matrices[i], next[i]);
      for (const int64_t size : {0, 1})
        whole_shapes.push_back(whole_shape(matrices[i].param).size(static_cast<int>(size)));
      any_shard = any_shard || is_shard(matrices[i].param);
    }
    const Value clipped = u.scale;
    u.scale = clipped * 0.0 + 1.0;  // 1, or NaN where gradients are not finite
    Attrs attrs{{"rate", u.options.muon_rate}};
    if (any_shard) attrs.set("whole_shapes", std::move(whole_shapes));
    u.append(
        Op::muon, matrices, [](const Trained&) { return std::vector<Update::State>{}; },
        std::move(attrs));
    u.scale = clipped;
  }
  update_by_adamw(u, others);
}

}  // namespace brrr::optim
