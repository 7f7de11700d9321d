#include "passes/fusion/fuse_groups.h"

#include <algorithm>
#include <queue>
#include <set>

#include "ops/ops.h"

namespace brrr {
namespace {

constexpr size_t kMostTensors = 32;   // operands and results of a group
constexpr size_t kMostMembers = 256;  // more of them save no time: memory is no longer the limit

}  // namespace

FuseGroups::FuseGroups(const Graph& graph, std::vector<FuseRole> roles)
    : graph_(graph), roles_(std::move(roles)), joined_(graph) {
  const size_t n = graph.size();
  readers_.resize(n);
  is_output_.resize(n);
  for (NodeId id = 0; id < n; ++id) {
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

void FuseGroups::grow() {
  for (NodeId id = 0; id < graph_.size(); ++id) {
    if (roles_[id] == FuseRole::none) continue;
    for (size_t k = 0; k < graph_.node(id).operands.size(); ++k) {
      const NodeId from = read(id, k).node;
      if (group_of(from) != group_of(id) && flows(from, id, k))
        try_join(group_of(from), group_of(id));
    }
  }
}

void FuseGroups::try_join(uint32_t a, uint32_t b) {
  // The checks look at all members, and a chain would be looked at once for each of its nodes.
  if (members(a).size() + members(b).size() > kMostMembers) return;
  const Space &sa = spaces_[a], &sb = spaces_[b];
  if (sa.elements != sb.elements) return;
  if (sa.width != 0 && sb.width != 0 && sa.width != sb.width) return;
  if ((sa.in_rows || sb.in_rows) && (sa.in_tiles || sb.in_tiles)) return;
  if (!edges_fit(a, b) || joined_.makes_cycle(a, b) || too_many_tensors(a, b)) return;
  spaces_[std::min(a, b)] = {sa.elements, std::max(sa.width, sb.width), sa.in_rows || sb.in_rows,
                             sa.in_tiles || sb.in_tiles};
  joined_.join(a, b);
}

/// Every edge between the two stays inside: a statistic, a sum over rows or a value that is
/// broadcast would be read before it is complete.
bool FuseGroups::edges_fit(uint32_t a, uint32_t b) const {
  for (uint32_t group : {a, b})
    for (NodeId id : members(group)) {
      const Node& node = graph_.node(id);
      for (size_t k = 0; k < node.operands.size(); ++k) {
        const NodeId from = read(id, k).node;
        const uint32_t in = group_of(from);
        if (in != group && (in == a || in == b) && !flows(from, id, k)) return false;
      }
    }
  return true;
}

bool FuseGroups::too_many_tensors(uint32_t a, uint32_t b) const {
  if (members(a).size() + members(b).size() < kMostTensors / 4) return false;
  std::set<ValueId> tensors;
  for (uint32_t group : {a, b})
    for (NodeId id : members(group)) {
      for (const ValueId& v : graph_.node(id).operands) {
        const uint32_t from = group_of(v.node);
        if (from != a && from != b && !is(graph_.node(v.node), Op::full)) tensors.insert(v);
      }
      bool leaves = is_output_[id];
      for (NodeId reader : readers_[id]) leaves |= group_of(reader) != a && group_of(reader) != b;
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
    for (NodeId id : members(group))
      for (const ValueId& v : graph_.node(id).operands) {
        const uint32_t from = group_of(v.node);
        if (roles_[id] != FuseRole::none && group_of(source(v).node) == group) continue;
        if (from != group && needs[group].insert(from).second) needed_by[from].push_back(group);
      }
  using Entry = std::pair<NodeId, uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  auto add = [&](uint32_t group) { ready.push({members(group).back(), group}); };
  std::vector<size_t> missing(n);
  size_t groups = 0;
  for (uint32_t group = 0; group < n; ++group) {
    if (members(group).empty()) continue;
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
