#pragma once
// What the nodes of a compiled program are to people: the pass they belong to, their class, their
// name, their layer.

#include <string>

#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr::insight {

bool is_optimizer(const Graph& graph, NodeId id);

/// The phases of a scheduled program. The optimizer's small change (a learning rate, a norm of one
/// gradient) may be scheduled early, so phases follow the nodes and not the clock.
class Phases {
 public:
  explicit Phases(const Graph& graph);
  /// The first node of the backward pass, or the size of the graph.
  NodeId backward_begins() const { return begin_; }
  /// "forward", "backward" or "optimizer".
  const char* of(NodeId id) const;

 private:
  const Graph& g_;
  NodeId begin_;
};

/// The class that a node counts to: of a fused node that of the weightiest of its parts.
OpClass weightiest_class(const Graph& graph, NodeId id);

/// What a node is known by; of a fused node the parts that do the work.
std::string op_text(const Graph& graph, NodeId id);
/// "f32[768,768] f32[768,2304]": the two largest operands, which say what a kernel works on.
std::string shape_text(const Graph& graph, const Node& node);

/// The part of the model that a node belongs to, for tables: "h.3", "embed", "optimizer".
std::string layer_of(const Graph& graph, NodeId id);

}  // namespace brrr::insight
