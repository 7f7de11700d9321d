#pragma once
// A training graph as rematerialisation sees it: what is forward and may run again, where each copy
// would stand, how many bytes live then, and the graph that comes of a choice. What to run again is
// a free choice: operands that do not run again are kept.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace brrr {

class Recomputation {
 public:
  /// Whether a node runs again. [node]
  using Choice = std::vector<bool>;

  explicit Recomputation(const Graph& graph);
  const Graph& graph() const { return graph_; }

  /// A forward node that could run again: no input, no constant, no view.
  bool is_forward(NodeId id) const { return kind_[id] == Kind::forward && !is_view_[id]; }
  /// The value whose bytes a value stands in.
  ValueId root(ValueId v) const { return root_[v.node].empty() ? v : root_[v.node][v.port]; }
  /// Readers of a forward value, through views.
  struct Reader {
    NodeId node;
    bool late;  // of the backward pass, and so a reader of the copy where there is one
  };
  const std::vector<Reader>& readers(ValueId root) const { return readers_[root.node][root.port]; }
  /// Whether the backward pass reads a result of the node.
  bool read_late(NodeId id) const;

  /// The nodes that run again for the choice: those of it that the backward pass needs.
  std::vector<NodeId> copies(const Choice& again) const;
  /// The most bytes of forward values at one time.
  int64_t peak_bytes(const Choice& again) const;
  Graph apply(const Choice& again) const;

  /// As buffers are: a multiple of 64, at least one.
  static int64_t aligned(int64_t bytes);

 private:
  enum class Kind : uint8_t { constant, input, forward, backward };
  struct Step {
    NodeId node;
    bool copy;
    ValueId gate;
  };
  void find_kinds();
  void find_roots();
  void find_gates();
  void find_readers();
  bool runs_again(ValueId v, const Choice& again) const;
  bool reads_copies(const Step& step) const {
    return step.copy || gate_[step.node].node != kNoNode;
  }
  std::vector<Step> order(const Choice& again) const;
  void find_flows();
  /// Which operands of a step are copies.
  bool is_copy(const Step& step, NodeId root, const Choice& again) const {
    return is_forward(root) && again[root] && reads_copies(step);
  }

  const Graph& graph_;
  std::vector<Kind> kind_;
  std::vector<bool> is_view_;
  std::vector<std::vector<ValueId>> root_;  // empty for what is no view
  std::vector<ValueId> gate_;               // [backward node]: what its copies wait for
  std::vector<std::vector<std::vector<Reader>>> readers_;

  // The same for speed: a search asks for the bytes of thousands of choices.
  struct Flow {
    NodeId node, root;
    uint32_t value;    // the number of the root's value
    bool overwritten;  // by a forward result of the same size, if this is the last reader
  };
  std::vector<uint32_t> first_flow_, first_value_;  // [node], and one more
  std::vector<Flow> flows_;                         // operands
  std::vector<int64_t> bytes_;                      // [value]
};

}  // namespace brrr
