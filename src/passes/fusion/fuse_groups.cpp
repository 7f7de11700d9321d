#include "passes/fusion/fuse_groups.h"

#include <algorithm>
#include <queue>
#include <set>

#include "ops/ops.h"

namespace brrr {
namespace {

constexpr size_t kMostTensors = 32;  // operands and results of a group

}  // namespace

FuseGroups::FuseGroups(const Graph& graph, std::vector<FuseRole> roles)
    : graph_(graph), roles_(std::move(roles)) {
  const size_t n = graph.size();
  words_ = (n + 63) / 64;
  ancestors_.resize(n * words_);
  members_.resize(n);
  readers_.resize(n);
  is_output_.resize(n);
  for (NodeId id = 0; id < n; ++id) {
    group_of_.push_back(id);
    members_[id] = {id};
    spaces_.push_back(space_of(id));
    for (const ValueId& v : graph.node(id).operands)
      if (readers_[v.node].empty() || readers_[v.node].back() != id) readers_[v.node].push_back(id);
  }
  for (const Output& o : graph.outputs()) is_output_[o.value.node] = true;
}

FuseGroups::Space FuseGroups::space_of(NodeId id) const {
  const Node& node = graph_.node(id);
  switch (roles_[id]) {
    case FuseRole::none:
      return {};
    case FuseRole::pointwise:
      return {node.results[0].shape.elements(), 0};
    case FuseRole::rows:
      return {node.results[0].shape.elements(), node.results[0].shape.size(-1), true};
    case FuseRole::sum_rows: {
      const Shape& x = graph_.type(node.operands[0]).shape;
      return {x.elements(), x.size(-1), true};
    }
    case FuseRole::scale:
      return {graph_.type(node.operands[0]).shape.elements(), 0};
    case FuseRole::turned: {
      const Shape& x = graph_.type(node.operands[0]).shape;
      return {x.elements(), x.size(-1), false, true};
    }
  }
  return {};
}

ValueId FuseGroups::source(ValueId v) const {
  const ValueId root = behind_reshapes(graph_, v);
  return roles_[root.node] == FuseRole::none ? v : root;
}

/// What node `id` depends on, for the question of cycles.
ValueId FuseGroups::read(NodeId id, size_t operand) const {
  const ValueId v = graph_.node(id).operands[operand];
  return roles_[id] == FuseRole::none ? v : source(v);
}

/// Whether the value may stay inside a group: element i of it goes into element (or row) i of the
/// reader.
bool FuseGroups::flows(NodeId from, NodeId to, size_t operand) const {
  const ValueId v = read(to, operand);
  if (v.port != 0 || is_end(roles_[from])) return false;
  if (roles_[from] == FuseRole::none || roles_[to] == FuseRole::none) return false;
  if (roles_[to] == FuseRole::rows && operand >= graph_.node(to).op->row_operands) return false;
  return graph_.type(v).shape.elements() == spaces_[to].elements;
}

void FuseGroups::add_ancestors(uint32_t group, uint32_t of) {
  for (size_t w = 0; w < words_; ++w) ancestors_[group * words_ + w] |= ancestors_[of * words_ + w];
}

void FuseGroups::grow() {
  for (NodeId id = 0; id < graph_.size(); ++id) {
    const Node& node = graph_.node(id);
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const uint32_t from = group_of_[read(id, k).node];
      add_ancestor(id, from);
      add_ancestors(id, from);
    }
    reached_ = id + 1;
    if (roles_[id] == FuseRole::none) continue;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const NodeId from = read(id, k).node;
      if (group_of_[from] != group_of_[id] && flows(from, id, k))
        try_join(group_of_[from], group_of_[id]);
    }
  }
}

bool FuseGroups::try_join(uint32_t a, uint32_t b) {
  const Space &sa = spaces_[a], &sb = spaces_[b];
  if (sa.elements != sb.elements) return false;
  if (sa.width != 0 && sb.width != 0 && sa.width != sb.width) return false;
  if ((sa.in_rows || sb.in_rows) && (sa.in_tiles || sb.in_tiles)) return false;
  if (!edges_fit(a, b) || makes_cycle(a, b) || too_many_tensors(a, b)) return false;
  const uint32_t root = std::min(a, b), other = std::max(a, b);
  spaces_[root] = {sa.elements, std::max(sa.width, sb.width), sa.in_rows || sb.in_rows,
                   sa.in_tiles || sb.in_tiles};
  std::vector<NodeId> all;
  std::merge(members_[root].begin(), members_[root].end(), members_[other].begin(),
             members_[other].end(), std::back_inserter(all));
  members_[root] = std::move(all);
  for (NodeId id : members_[other]) group_of_[id] = root;
  members_[other].clear();
  add_ancestors(root, other);
  auto forget = [&](uint32_t group) {
    ancestors_[root * words_ + group / 64] &= ~(uint64_t{1} << (group % 64));
  };
  forget(root);
  forget(other);
  for (uint32_t d = 0; d < reached_; ++d) {
    if (members_[d].empty() || d == root) continue;
    if (!has_ancestor(d, root) && !has_ancestor(d, other)) continue;
    add_ancestor(d, root);
    add_ancestors(d, root);
  }
  return true;
}

/// Every edge between the two stays inside: a statistic, a sum over rows or a value that is
/// broadcast would be read before it is complete.
bool FuseGroups::edges_fit(uint32_t a, uint32_t b) const {
  for (uint32_t group : {a, b})
    for (NodeId id : members_[group]) {
      const Node& node = graph_.node(id);
      for (size_t k = 0; k < node.operands.size(); ++k) {
        const NodeId from = read(id, k).node;
        const uint32_t in = group_of_[from];
        if (in != group && (in == a || in == b) && !flows(from, id, k)) return false;
      }
    }
  return true;
}

/// Whether something outside reads from the one and is read by the other.
bool FuseGroups::makes_cycle(uint32_t a, uint32_t b) const {
  for (uint32_t group : {a, b})
    for (NodeId id : members_[group])
      for (size_t k = 0; k < graph_.node(id).operands.size(); ++k) {
        const uint32_t from = group_of_[read(id, k).node];
        if (from != a && from != b && (has_ancestor(from, a) || has_ancestor(from, b))) return true;
      }
  return false;
}

bool FuseGroups::too_many_tensors(uint32_t a, uint32_t b) const {
  if (members_[a].size() + members_[b].size() < kMostTensors / 4) return false;
  std::set<ValueId> tensors;
  for (uint32_t group : {a, b})
    for (NodeId id : members_[group]) {
      for (const ValueId& v : graph_.node(id).operands) {
        const uint32_t from = group_of_[v.node];
        if (from != a && from != b && !graph_.node(v.node).op->is_constant) tensors.insert(v);
      }
      bool leaves = is_output_[id];
      for (NodeId reader : readers_[id]) leaves |= group_of_[reader] != a && group_of_[reader] != b;
      if (!leaves) continue;
      for (uint32_t port = 0; port < graph_.node(id).results.size(); ++port)
        tensors.insert({id, port});
    }
  return tensors.size() > kMostTensors;
}

std::vector<uint32_t> FuseGroups::order() const {
  // A group stands where its last member stood, or later.
  const size_t n = graph_.size();
  std::vector<std::set<uint32_t>> needs(n);
  std::vector<std::vector<uint32_t>> needed_by(n);
  for (uint32_t group = 0; group < n; ++group)
    for (NodeId id : members_[group])
      for (const ValueId& v : graph_.node(id).operands) {
        const uint32_t from = group_of_[v.node];
        if (roles_[id] != FuseRole::none && group_of_[source(v).node] == group) continue;
        if (from != group && needs[group].insert(from).second) needed_by[from].push_back(group);
      }
  using Entry = std::pair<NodeId, uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  auto add = [&](uint32_t group) { ready.push({members_[group].back(), group}); };
  std::vector<size_t> missing(n);
  size_t groups = 0;
  for (uint32_t group = 0; group < n; ++group) {
    if (members_[group].empty()) continue;
    ++groups;
    missing[group] = needs[group].size();
    if (missing[group] == 0) add(group);
  }
  std::vector<uint32_t> out;
  while (!ready.empty()) {
    const uint32_t group = ready.top().second;
    ready.pop();
    out.push_back(group);
    for (uint32_t next : needed_by[group])
      if (--missing[next] == 0) add(next);
  }
  BRRR_CHECK(out.size() == groups, "fused groups make a cycle");
  return out;
}

}  // namespace brrr
