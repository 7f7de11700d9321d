#pragma once
// Groups of nodes that become one: how they may grow, without ever making a cycle.

#include <functional>
#include <vector>

#include "ir/graph.h"
#include "ir/op_def.h"

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
  uint32_t group_of(NodeId id) const { return group_of_[id]; }
  /// In the order of the graph; empty for what has become part of another group.
  const std::vector<NodeId>& members(uint32_t group) const { return members_[group]; }
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
  bool try_join(uint32_t a, uint32_t b);
  bool edges_fit(uint32_t a, uint32_t b) const;
  bool makes_cycle(uint32_t a, uint32_t b) const;
  bool too_many_tensors(uint32_t a, uint32_t b) const;

  bool has_ancestor(uint32_t group, uint32_t other) const {
    return ancestors_[group * words_ + other / 64] >> (other % 64) & 1;
  }
  void add_ancestors(uint32_t group, uint32_t of);
  void add_ancestor(uint32_t group, uint32_t other) {
    ancestors_[group * words_ + other / 64] |= uint64_t{1} << (other % 64);
  }

  const Graph& graph_;
  std::vector<FuseRole> roles_;
  std::vector<uint32_t> group_of_;
  std::vector<std::vector<NodeId>> members_;
  std::vector<std::vector<NodeId>> readers_;  // of a node's results
  std::vector<bool> is_output_;
  std::vector<Space> spaces_;
  size_t words_ = 0;
  NodeId reached_ = 0;               // nodes before it have their ancestors
  std::vector<uint64_t> ancestors_;  // one row of bits for each group: groups it depends on
};

}  // namespace brrr
