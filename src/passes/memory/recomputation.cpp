#include "passes/memory/recomputation.h"

#include <algorithm>
#include <map>

#include "ir/rewriter.h"
#include "ops/fused.h"
#include "ops/ops.h"

namespace brrr {
namespace {

constexpr ValueId kNoSource{kNoNode, 0};

/// What the pass `fuse` may put into a cluster. A gate is none of these: nothing is kept from
/// joining what it joins without copies.
bool may_fuse(const OpDef& op) { return is_pointwise(op) || op.op_class == OpClass::normalisation; }

}  // namespace

Recomputation::Recomputation(const Graph& graph) : graph_(graph) {
  find_kinds();
  find_roots();
  find_gates();
  find_readers();
  find_flows();
}

void Recomputation::find_kinds() {
  kind_.assign(graph_.size(), Kind::constant);
  for (NodeId id = 0; id < graph_.size(); ++id) {
    if (graph_.is_input(id)) {
      kind_[id] = Kind::input;
      continue;
    }
    bool constant = true, backward = graph_.phase(id) == Phase::backward;
    for (const ValueId& v : graph_.node(id).operands) {
      constant = constant && kind_[v.node] == Kind::constant;
      backward = backward || kind_[v.node] == Kind::backward;
    }
    if (!constant) kind_[id] = backward ? Kind::backward : Kind::forward;
  }
}

void Recomputation::find_roots() {
  is_view_.resize(graph_.size());
  root_.resize(graph_.size());
  for (NodeId id = 0; id < graph_.size(); ++id) {
    const Node& node = graph_.node(id);
    if (!view_offset(graph_, node)) continue;
    is_view_[id] = true;
    root_[id] = {root(node.operands[0])};
  }
}

// The gate of a backward node is the nearest product among what it waits for anyway: a copy that
// waits for it, too, is not early, and keeps nothing apart that `fuse` would join. A node that
// serves no gradient yet (the derivative of tanh from its result) takes the last product before it.
void Recomputation::find_gates() {
  gate_.assign(graph_.size(), kNoSource);
  std::vector<ValueId> heavy(graph_.size(), kNoSource), any(graph_.size(), kNoSource);
  std::vector<bool> late(graph_.size());  // depends on a forward value: cannot run at the start
  ValueId last_heavy = kNoSource, last_any = kNoSource;
  auto later = [](ValueId a, ValueId b) {
    if (a.node == kNoNode) return b;
    return b.node == kNoNode || a.node > b.node ? a : b;
  };
  for (NodeId id = 0; id < graph_.size(); ++id) {
    if (kind_[id] != Kind::backward) continue;
    const Node& node = graph_.node(id);
    bool serves = false;
    for (const ValueId& v : node.operands) {
      late[id] = late[id] || kind_[v.node] == Kind::forward || late[v.node];
      if (kind_[v.node] != Kind::backward || !late[v.node]) continue;
      serves = true;
      heavy[id] = later(heavy[id], heavy[v.node]);
      any[id] = later(any[id], any[v.node]);
    }
    if (graph_.phase(id) == Phase::backward) {
      gate_[id] = heavy[id].node != kNoNode ? heavy[id] : any[id];
      if (!serves) gate_[id] = last_heavy.node != kNoNode ? last_heavy : last_any;
    }
    if (!late[id] || is_view_[id]) continue;
    ValueId smallest{id, 0};
    for (uint32_t port = 1; port < node.results.size(); ++port)
      if (node.results[port].bytes() < graph_.type(smallest).bytes()) smallest.port = port;
    any[id] = last_any = smallest;
    if (!may_fuse(*node.op)) heavy[id] = last_heavy = smallest;
  }
}

void Recomputation::find_readers() {
  readers_.resize(graph_.size());
  for (NodeId id = 0; id < graph_.size(); ++id) readers_[id].resize(graph_.node(id).results.size());
  for (NodeId id = 0; id < graph_.size(); ++id) {
    if (is_view_[id]) continue;
    for (const ValueId& v : graph_.node(id).operands) {
      const ValueId from = root(v);
      if (is_forward(from.node))
        readers_[from.node][from.port].push_back({id, gate_[id].node != kNoNode});
    }
  }
}

bool Recomputation::read_late(NodeId id) const {
  for (const auto& port : readers_[id])
    for (const Reader& r : port)
      if (r.late) return true;
  return false;
}

bool Recomputation::runs_again(ValueId v, const Choice& again) const {
  const ValueId from = root(v);
  return is_forward(from.node) && again[from.node];
}

void Recomputation::find_flows() {
  for (NodeId id = 0; id < graph_.size(); ++id) {
    first_value_.push_back(static_cast<uint32_t>(bytes_.size()));
    for (const Type& t : graph_.node(id).results) bytes_.push_back(aligned(t.bytes()));
  }
  for (NodeId id = 0; id < graph_.size(); ++id) {
    const Node& node = graph_.node(id);
    first_flow_.push_back(static_cast<uint32_t>(flows_.size()));
    for (const ValueId& v : node.operands) {
      const ValueId from = root(v);
      flows_.push_back({v.node, from.node, first_value_[from.node] + from.port, false});
    }
    if (!is_forward(id)) continue;
    for (const OpDef::InPlace& pair : node.op->in_place_pairs(node)) {
      const ValueId v = node.operands[pair.operand];
      if (root(v) == v && is_forward(v.node) &&
          node.results[pair.result].bytes() == graph_.type(v).bytes())
        flows_[first_flow_[id] + pair.operand].overwritten = true;
    }
  }
  first_flow_.push_back(static_cast<uint32_t>(flows_.size()));
}

// Forward and backward in their order, each copy just before the first backward node that needs it,
// with what it needs itself.
std::vector<Recomputation::Step> Recomputation::order(const Choice& again) const {
  std::vector<Step> steps;
  steps.reserve(2 * graph_.size());
  std::vector<uint8_t> done(graph_.size());
  std::vector<NodeId> found;
  auto find = [&](NodeId reader) {
    for (uint32_t k = first_flow_[reader]; k < first_flow_[reader + 1]; ++k) {
      const Flow& flow = flows_[k];
      if (done[flow.node] || !is_forward(flow.root) || !again[flow.root]) continue;
      done[flow.node] = 1;
      found.push_back(flow.node);
    }
  };
  for (NodeId id = 0; id < graph_.size(); ++id) {
    if (gate_[id].node != kNoNode) {
      found.clear();
      find(id);
      for (size_t i = 0; i < found.size(); ++i) find(found[i]);
      std::sort(found.begin(), found.end());
      for (NodeId node : found) steps.push_back({node, true, gate_[id]});
    }
    steps.push_back({id, false, kNoSource});
  }
  return steps;
}

std::vector<NodeId> Recomputation::copies(const Choice& again) const {
  std::vector<NodeId> out;
  for (const Step& s : order(again))
    if (s.copy && !is_view_[s.node]) out.push_back(s.node);
  return out;
}

Graph Recomputation::apply(const Choice& again) const {
  Rewriter r(graph_);
  std::vector<std::vector<ValueId>> copy(graph_.size());
  std::map<std::pair<ValueId, ValueId>, Value> gated;
  // The operand that holds a copy back when no other operand does.
  auto held_operand = [&](const Node& node) {
    size_t best = 0;
    auto rank = [&](size_t k) {
      const ValueId v = node.operands[k];
      const bool parameter =
          graph_.is_input(v.node) && graph_.input_kind(v.node) != InputKind::data;
      return std::pair(kind_[v.node] == Kind::forward    ? 2
                       : kind_[v.node] == Kind::constant ? -1
                       : parameter                       ? 0
                                                         : 1,
                       graph_.type(v).bytes());
    };
    for (size_t k = 1; k < node.operands.size(); ++k)
      if (rank(k) > rank(best)) best = k;
    return best;
  };
  for (const Step& step : order(again)) {
    const Node& node = graph_.node(step.node);
    if (!reads_copies(step)) {
      r.copy(step.node);
      continue;
    }
    std::vector<ValueId> operands;
    bool holds = false;
    for (const ValueId& v : node.operands) {
      const bool is_copy = runs_again(v, again);
      operands.push_back(is_copy ? copy[v.node][v.port] : r.map(v).id);
      holds = holds || is_copy;
    }
    if (!step.copy) {
      r.enter_scope_of(step.node);
      const NodeId added = r.out().add(*node.op, operands, node.attrs);
      for (uint32_t port = 0; port < node.results.size(); ++port)
        r.bind({step.node, port}, r.out().value(added, port));
      continue;
    }
    const Phase phase = graph_.phase(step.node);  // a view may be the backward's own
    r.out().set_scope(graph_.path_of(step.node),
                      phase == Phase::backward ? phase : Phase::recompute);
    if (!holds) {
      const size_t k = held_operand(node);
      const ValueId gate = r.map(step.gate).id;
      auto [at, is_new] = gated.try_emplace({operands[k], gate});
      if (is_new) at->second = after(r.out().value(operands[k]), r.out().value(gate));
      operands[k] = at->second.id;
    }
    const NodeId added = r.out().add(*node.op, operands, node.attrs);
    for (uint32_t port = 0; port < node.results.size(); ++port)
      copy[step.node].push_back({added, port});
  }
  return drop_dead(r.finish());
}

}  // namespace brrr
