#pragma once
// Which values of a graph every kernel reads at any address, as weights lie in a file. The graph is
// looked through once, however many weights it has.

#include <vector>

#include "runtime/backend.h"

namespace brrr {

class UnalignedReaders {
 public:
  /// Both outlive it.
  UnalignedReaders(const Backend& backend, const Graph& graph);
  /// Whether every kernel that reads a result of the node, which has one, takes it at any address.
  bool take(NodeId node);

 private:
  bool takes(NodeId reader, NodeId node);

  const Backend& backend_;
  const Graph& graph_;
  std::vector<std::vector<NodeId>> readers_;
};

}  // namespace brrr
