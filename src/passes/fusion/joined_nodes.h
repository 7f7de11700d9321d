#pragma once
// Nodes of a graph that are joined into groups, two groups at a time, and the question whether two
// may be joined: whether nothing outside them reads from the one and is read by the other. The
// groups are kept in an order in which each stands after those that it reads from, as in Pearce and
// Kelly (2007), so that only what stands between the two is looked at.

#include <vector>

#include "ir/graph.h"

namespace brrr {

class JoinedNodes {
 public:
  /// Every node is a group of its own. Reshapes are seen through: a node reads from the node behind
  /// them.
  explicit JoinedNodes(const Graph& graph);

  /// A group is named by its first node.
  NodeId group_of(NodeId id) const { return group_of_[id]; }
  /// In the order of the graph; empty for what is not the first of its group.
  const std::vector<NodeId>& members(NodeId group) const { return members_[group]; }
  /// Whether joining two groups, one of which reads from the other, would make a cycle.
  bool makes_cycle(NodeId a, NodeId b);
  /// Makes one group of the two, where that makes no cycle.
  void join(NodeId a, NodeId b);

 private:
  void find_chain();
  bool find_between(NodeId from, NodeId to);

  std::vector<std::vector<NodeId>> reads_, readers_;
  std::vector<NodeId> group_of_;
  std::vector<std::vector<NodeId>> members_;
  std::vector<NodeId> place_;  // [group]: in the order
  std::vector<NodeId> at_;     // [place]: the group, or kNoNode where it was joined with another
  // The longest path through the graph as landmarks: what leads to a landmark is before everything
  // that a later landmark leads to.
  std::vector<uint32_t> leads_to_;    // [node]: the first landmark that depends on it
  std::vector<uint32_t> comes_from_;  // [node]: one more than the last landmark that it depends on
  std::vector<uint32_t> seen_;        // [group]: the search that came by it last
  uint32_t search_ = 0;
  std::vector<NodeId>
      between_;  // what the last search found: groups that read from the earlier one
};

}  // namespace brrr
