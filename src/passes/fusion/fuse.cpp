// Nodes that pass a tensor from one to the next become one node, so that the tensor is neither
// written nor read: element-wise chains of any length, and rows, such as residual + dropout +
// layer_norm, with the sums over rows that their gradients need; and the scale and the transposed
// copy of what is multiplied in 8 bits.

#include <map>

#include "ops/fused.h"
#include "ops/ops.h"
#include "passes/fusion/fuse_groups.h"
#include "passes/passes.h"

namespace brrr {
namespace {

/// A body, and what goes in and out.
struct Cluster {
  Graph body;
  std::vector<ValueId> operands, results;  // of the graph
  Attrs attrs() const { return {{"body", Region(body)}}; }
};

class ClusterBuilder {
 public:
  explicit ClusterBuilder(const Graph& graph) : graph_(graph) {}

  void add(NodeId id) {
    const Node& node = graph_.node(id);
    std::vector<ValueId> operands;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      // The parameters of rows are tensors of one row, constant or not.
      const bool parameter = node.op->row_operands > 0 && k >= node.op->row_operands;
      operands.push_back(parameter ? outside(node.operands[k]) : inside(node.operands[k]));
    }
    bind(id, out_.body.add(*node.op, operands, node.attrs));
  }
  void result(ValueId v) {
    out_.body.output(std::to_string(out_.results.size()), out_.body.value(map_.at(v)));
    out_.results.push_back(v);
  }
  Cluster finish() { return std::move(out_); }

 private:
  void bind(NodeId id, NodeId added) {
    for (uint32_t port = 0; port < graph_.node(id).results.size(); ++port)
      map_[{id, port}] = {added, port};
  }
  ValueId inside(ValueId v) {
    if (auto at = map_.find(v); at != map_.end()) return at->second;
    if (!is_made_again(v)) return outside(v);
    add(v.node);
    return map_.at(v);
  }
  /// Constants and broadcasts are made again inside: that takes less traffic than reading them. A
  /// reshape of what is inside is another look at it.
  bool is_made_again(ValueId v) const {
    const Node& node = graph_.node(v.node);
    if (is(node, Op::reshape))
      return map_.contains(node.operands[0]) || is_made_again_reshape(node.operands[0]);
    return is(node, Op::full) || is(node, Op::broadcast_to);
  }
  bool is_made_again_reshape(ValueId v) const {
    return is(graph_.node(v.node), Op::reshape) && is_made_again(v);
  }
  ValueId outside(ValueId v) {
    auto [at, is_new] = operand_.try_emplace(v);
    if (is_new) {
      const Type& t = graph_.type(v);
      at->second = out_.body.input(fmt::format("a{}", out_.operands.size()), t).id;
      out_.operands.push_back(v);
    }
    return at->second;
  }
  const Graph& graph_;
  Cluster out_;
  std::map<ValueId, ValueId> map_;      // results of nodes inside
  std::map<ValueId, ValueId> operand_;  // inputs of the body
};

/// Whether the target would run the cluster as a node.
bool runs(const Graph& graph, const Cluster& cluster, const Target& target) {
  Graph alone;
  std::vector<ValueId> operands;
  for (const ValueId& v : cluster.operands) {
    const Type& t = graph.type(v);
    operands.push_back(alone.input(std::to_string(operands.size()), t).id);
  }
  return target.runs(alone, alone.add(op(Op::fused), operands, cluster.attrs()));
}

class Fuser {
 public:
  Fuser(const Graph& graph, const Target& target)
      : graph_(graph), target_(target), groups_(graph, find_roles()) {}

  Graph run(Notes* notes) {
    groups_.grow();
    uses_ = find_uses();
    unread_.resize(graph_.size());
    copied_.resize(graph_.size());
    Rewriter r(graph_);
    for (uint32_t group : groups_.order()) {
      const auto& members = groups_.members(group);
      if (unread_[members[0]] || fuse(r, members)) continue;
      for (NodeId id : members) copy(r, id);
    }
    if (notes)
      for (const auto& [kind, count] : counts_)
        notes->push_back(fmt::format("{}: {} of {} ops, {:.1f} MiB less to read and write", kind,
                                     count.clusters, count.ops, count.bytes_saved / 0x1p20));
    return drop_dead(r.finish());
  }

 private:
  struct Count {
    int clusters = 0, ops = 0;
    double bytes_saved = 0;
  };

  std::vector<FuseRole> find_roles() {
    std::vector<FuseRole> roles(graph_.size(), FuseRole::none);
    std::vector<bool> constant(graph_.size());
    for (NodeId id = 0; id < graph_.size(); ++id) {
      const Node& node = graph_.node(id);
      constant[id] = !graph_.is_input(id);
      for (const ValueId& v : node.operands) constant[id] = constant[id] && constant[v.node];
      // What depends on no input is computed once, before the first step.
      if (!constant[id]) roles[id] = role_of(id);
    }
    return roles;
  }
  FuseRole role_of(NodeId id) {
    const Node& node = graph_.node(id);
    const Op op = node.op->id;
    if (is(node, Op::fused)) return FuseRole::none;  // a product with the gradient of a bias
    if (is_pointwise(*node.op)) return alone(id) ? FuseRole::pointwise : FuseRole::none;
    if (node.op->row_operands > 0) return alone(id) ? FuseRole::rows : FuseRole::none;
    if (is(node, Op::quantize_scale)) return alone(id) ? FuseRole::scale : FuseRole::none;
    if (op == Op::transpose && is(graph_.node(node.operands[0].node), Op::quantize))
      return node.results[0].shape.rank() == 2 && alone(id) ? FuseRole::turned : FuseRole::none;
    if (op != Op::sum) return FuseRole::none;
    const Type& x = graph_.type(node.operands[0]);
    const auto& axes = node.attrs.get<std::vector<int64_t>>("axes");
    if (x.shape.rank() < 2 || static_cast<int>(axes.size()) != x.shape.rank() - 1 ||
        axes.back() == x.shape.rank() - 1 || x.shape.elements() == 0)
      return FuseRole::none;
    if (x.shape.size(-1) == 1) return FuseRole::none;  // one number: a sum of its own kind
    return x.dtype == DType::f32 || x.dtype == DType::bf16 ? FuseRole::sum_rows : FuseRole::none;
  }

  /// Whether the target runs a cluster of this node alone; asked once for each op and its dtypes.
  bool alone(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.results[0].shape.elements() == 0) return false;
    std::string key = node.op->name;
    for (const ValueId& v : node.operands) key += name_of(graph_.type(v).dtype);
    for (const Type& t : node.results) key += name_of(t.dtype);
    auto [at, is_new] = runs_alone_.try_emplace(key, false);
    if (!is_new) return at->second;
    ClusterBuilder builder(graph_);
    builder.add(id);
    for (uint32_t port = 0; port < node.results.size(); ++port) builder.result({id, port});
    return at->second = runs(graph_, builder.finish(), target_);
  }

  /// Which nodes read a value, or kOutput.
  static constexpr NodeId kOutput = kNoNode;
  std::vector<std::vector<std::vector<NodeId>>> find_uses() const {
    std::vector<std::vector<std::vector<NodeId>>> uses(graph_.size());
    for (NodeId id = 0; id < graph_.size(); ++id) uses[id].resize(graph_.node(id).results.size());
    for (NodeId id = 0; id < graph_.size(); ++id)
      for (const ValueId& v : graph_.node(id).operands) uses[v.node][v.port].push_back(id);
    for (const Output& o : graph_.outputs()) uses[o.value.node][o.value.port].push_back(kOutput);
    return uses;
  }
  /// Whether anything outside the group reads the value, or a reshape of it.
  bool leaves(ValueId v, uint32_t group) const {
    for (NodeId user : uses_[v.node][v.port]) {
      if (user == kOutput) return true;
      if (groups_.group_of(user) == group) continue;
      if (!is(graph_.node(user), Op::reshape) || leaves({user, 0}, group)) return true;
    }
    return false;
  }

  /// A node as it is, after the reshapes that it reads: those of values of its own group stand
  /// behind the group.
  void copy(Rewriter& r, NodeId id) {
    if (copied_[id]) return;
    copied_[id] = true;
    for (const ValueId& v : graph_.node(id).operands)
      if (is(graph_.node(v.node), Op::reshape)) copy(r, v.node);
    r.copy(id);
  }

  /// The reshapes of a value that does not leave its group look at nothing.
  void drop_reshapes(ValueId v, uint32_t group) {
    for (NodeId user : uses_[v.node][v.port]) {
      if (groups_.group_of(user) == group) continue;
      unread_[user] = true;
      drop_reshapes({user, 0}, group);
    }
  }

  bool fuse(Rewriter& r, const std::vector<NodeId>& members) {
    if (groups_.role(members[0]) == FuseRole::none) return false;
    size_t ops = members.size();
    for (NodeId id : members)
      for (const ValueId& v : graph_.node(id).operands)
        ops += is(graph_.node(v.node), Op::broadcast_to);
    if (ops < 2) return false;
    ClusterBuilder builder(graph_);
    bool has_rows = false;
    double before = 0;
    for (NodeId id : members) {
      builder.add(id);
      has_rows |= groups_.role(id) == FuseRole::rows || groups_.role(id) == FuseRole::sum_rows;
      const Cost cost = cost_of(graph_, id);
      before += cost.bytes_read + cost.bytes_written;
    }
    for (NodeId id : members)
      for (uint32_t port = 0; port < graph_.node(id).results.size(); ++port)
        if (leaves({id, port}, groups_.group_of(id))) builder.result({id, port});
    const Cluster cluster = builder.finish();
    if (cluster.results.empty() || !runs(graph_, cluster, target_)) return false;

    std::vector<ValueId> operands;
    for (const ValueId& v : cluster.operands) operands.push_back(r.map(v).id);
    r.enter_scope_of(members[0]);
    const NodeId fused = r.out().add(op(Op::fused), operands, cluster.attrs());
    for (uint32_t i = 0; i < cluster.results.size(); ++i)
      r.bind(cluster.results[i], r.out().value(fused, i));
    for (NodeId id : members)
      for (uint32_t port = 0; port < graph_.node(id).results.size(); ++port)
        if (!leaves({id, port}, groups_.group_of(id)))
          drop_reshapes({id, port}, groups_.group_of(id));
    const Cost after = cost_of(r.out(), fused);
    Count& count = counts_[has_rows ? "row clusters" : "element-wise clusters"];
    ++count.clusters;
    count.ops += static_cast<int>(members.size());
    count.bytes_saved += before - after.bytes_read - after.bytes_written;
    return true;
  }

  const Graph& graph_;
  const Target& target_;
  std::map<std::string, bool> runs_alone_;
  FuseGroups groups_;
  std::vector<std::vector<std::vector<NodeId>>> uses_;
  std::vector<bool> unread_;  // reshapes of values that are gone
  std::vector<bool> copied_;
  std::map<std::string, Count> counts_;
};

}  // namespace

Graph fuse(const Graph& graph, const Target& target, Notes* notes) {
  return Fuser(graph, target).run(notes);
}

}  // namespace brrr
