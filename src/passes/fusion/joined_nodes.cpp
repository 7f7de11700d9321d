#include "passes/fusion/joined_nodes.h"

#include <algorithm>
#include <iterator>

#include "base/errors.h"
#include "ops/ops.h"

namespace brrr {
namespace {

constexpr uint32_t kNoLandmark = ~0u;

}  // namespace

JoinedNodes::JoinedNodes(const Graph& graph)
    : reads_(graph.size()), readers_(graph.size()), members_(graph.size()), seen_(graph.size()) {
  for (NodeId id = 0; id < graph.size(); ++id) {
    for (const ValueId& v : graph.node(id).operands)
      reads_[id].push_back(behind_reshapes(graph, v).node);
    std::sort(reads_[id].begin(), reads_[id].end());
    reads_[id].erase(std::unique(reads_[id].begin(), reads_[id].end()), reads_[id].end());
    for (const NodeId from : reads_[id]) readers_[from].push_back(id);
    group_of_.push_back(id);
    place_.push_back(id);
    at_.push_back(id);
    members_[id] = {id};
  }
  find_chain();
}

void JoinedNodes::find_chain() {
  const auto n = static_cast<NodeId>(reads_.size());
  std::vector<uint32_t> depth(n);
  for (NodeId id = 0; id < n; ++id)
    for (const NodeId from : reads_[id]) depth[id] = std::max(depth[id], depth[from] + 1);
  leads_to_.assign(n, kNoLandmark);
  comes_from_.assign(n, 0);
  if (n == 0) return;
  auto last = static_cast<NodeId>(std::max_element(depth.begin(), depth.end()) - depth.begin());
  for (NodeId id = last;;) {
    leads_to_[id] = depth[id];
    comes_from_[id] = depth[id] + 1;
    if (depth[id] == 0) break;
    id = *std::find_if(reads_[id].begin(), reads_[id].end(),
                       [&](NodeId from) { return depth[from] + 1 == depth[id]; });
  }
  for (NodeId id = 0; id < n; ++id)
    for (const NodeId from : reads_[id])
      comes_from_[id] = std::max(comes_from_[id], comes_from_[from]);
  for (NodeId id = n; id-- > 0;)
    for (const NodeId from : reads_[id]) leads_to_[from] = std::min(leads_to_[from], leads_to_[id]);
}

bool JoinedNodes::makes_cycle(NodeId a, NodeId b) {
  return place_[a] < place_[b] ? find_between(a, b) : find_between(b, a);
}

/// Whether a third group stands on a way from the one to the other; else between_ is what reads
/// from the first and stands before the second.
bool JoinedNodes::find_between(NodeId from, NodeId to) {
  const uint32_t is_read = ++search_, is_found = ++search_;
  between_.clear();
  uint32_t latest = 0;  // one more than the last landmark that `to` depends on by way of a third
  for (const NodeId id : members_[to])
    for (const NodeId v : reads_[id]) {
      const NodeId group = group_of_[v];
      if (group == from || group == to) continue;
      latest = std::max(latest, comes_from_[v]);
      seen_[group] = is_read;
    }
  const auto look_at_readers = [&](NodeId group) {
    for (const NodeId id : members_[group]) {
      for (const NodeId reader : readers_[id]) {
        const NodeId next = group_of_[reader];
        if (next == from || next == to || place_[next] > place_[to]) continue;
        if (seen_[next] == is_read || leads_to_[reader] < latest) return true;
        if (seen_[next] == is_found) continue;
        seen_[next] = is_found;
        between_.push_back(next);
      }
    }
    return false;
  };
  if (look_at_readers(from)) return true;
  for (size_t i = 0; i < between_.size(); ++i)
    if (look_at_readers(between_[i])) return true;
  return false;
}

void JoinedNodes::join(NodeId a, NodeId b) {
  const bool in_order = place_[a] < place_[b];
  const NodeId from = in_order ? a : b, to = in_order ? b : a;
  BRRR_CHECK(!find_between(from, to), "the groups of %{} and %{} would make a cycle", a, b);
  // What reads from the earlier group moves behind the later one, in its order.
  const NodeId begin = place_[from], end = place_[to];
  std::vector<NodeId> behind = between_;
  std::sort(behind.begin(), behind.end(),
            [&](NodeId x, NodeId y) { return place_[x] < place_[y]; });
  NodeId at = begin;
  size_t moved = 0;
  for (NodeId place = begin + 1; place < end; ++place) {
    const NodeId group = at_[place];
    if (group == kNoNode) continue;
    if (moved < behind.size() && behind[moved] == group) {
      ++moved;
      continue;
    }
    place_[group] = at;
    at_[at++] = group;
  }
  const NodeId root = std::min(a, b), other = std::max(a, b);
  place_[root] = at;
  at_[at++] = root;
  for (const NodeId group : behind) {
    place_[group] = at;
    at_[at++] = group;
  }
  while (at <= end) at_[at++] = kNoNode;
  std::vector<NodeId> all;
  std::merge(members_[root].begin(), members_[root].end(), members_[other].begin(),
             members_[other].end(), std::back_inserter(all));
  for (const NodeId id : members_[other]) group_of_[id] = root;
  members_[root] = std::move(all);
  members_[other].clear();
}

}  // namespace brrr
