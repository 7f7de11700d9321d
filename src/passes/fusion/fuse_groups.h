#pragma once
// Groups of nodes that become one: how they may grow, without ever making a cycle.

#include <functional>
#include <vector>

#include "ir/graph.h"
#include "ir/op_def.h"
#include "passes/fusion/joined_nodes.h"

namespace brrr {

/// What a node can be in a group.
enum class FuseRole : uint8_t {
  none,
  pointwise,  // element by element
  rows,       // row by row of the last axis: OpDef::row_operands
  sum_rows,   // the sum over all rows
  scale,      // one number from all elements
  turned      // the transposed copy of a matrix
};
/// What is read by no node of its group.
inline bool is_end(FuseRole role) {
  return role == FuseRole::sum_rows || role == FuseRole::scale || role == FuseRole::turned;
}

/// Starts with every node as a group of its own, and joins groups along the edges between them.
class FuseGroups {
 public:
  /// roles: of each node.
  FuseGroups(const Graph& graph, std::vector<FuseRole> roles);

  /// Joins whatever may be joined, in the order of the nodes.
  void grow();
  NodeId group_of(NodeId id) const { return joined_.group_of(id); }
  /// In the order of the graph; empty for what has become part of another group.
  const std::vector<NodeId>& members(NodeId group) const { return joined_.members(group); }
  FuseRole role(NodeId id) const { return roles_[id]; }
  /// All groups, each after those it reads from.
  std::vector<uint32_t> order() const;
  /// What a member reads when it reads v: a reshape only looks at a value that may be in the group.
  ValueId source(ValueId v) const;

 private:
  /// Elements that a member has in the flat order that all members share, and the width of its rows
  /// (0: any).
  struct Space {
    int64_t elements = 0, width = 0;
    bool in_rows = false, in_tiles = false;  // by whole rows; by tiles that are turned: not both
  };
  Space space_of(NodeId id) const;
  ValueId read(NodeId id, size_t operand) const;
  bool flows(NodeId from, NodeId to, size_t operand) const;
  void try_join(uint32_t a, uint32_t b);
  bool edges_fit(uint32_t a, uint32_t b) const;
  bool too_many_tensors(uint32_t a, uint32_t b) const;

  const Graph& graph_;
  std::vector<FuseRole> roles_;
  JoinedNodes joined_;
  std::vector<std::vector<NodeId>> readers_;  // of a node's results
  std::vector<bool> is_output_;
  std::vector<Space> spaces_;
};

}  // namespace brrr
