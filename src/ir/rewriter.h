#pragma once
// Rewriter: the frame of a pass. Walk the old graph in order; for each node copy it, or build
// something else in out() and bind() the old results to the new values.

#include <functional>
#include <vector>

#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr {

/// Whether a pass keeps the types of the values that it replaces. Those of autocast and of symbolic
/// dimensions cannot; every other pass gives each value the dtype, shape and storage that it had.
enum class Types : uint8_t { stay, change };

class Rewriter {
 public:
  explicit Rewriter(const Graph& in, Types types = Types::stay);
  Graph& out() { return out_; }
  const Graph& in() const { return in_; }
  /// The new value of an old one.
  Value map(ValueId old);
  std::vector<Value> operands(NodeId old);
  /// Copies the node with its operands mapped, its scope and its inferred types.
  NodeId copy(NodeId old);
  /// The same with other attributes.
  NodeId copy(NodeId old, Attrs attrs);
  /// `value` stands for the old one from now on. Throws InternalError where its type is another,
  /// unless types change.
  void bind(ValueId old, Value value);
  /// Builds in the scope of the old node from now on.
  void enter_scope_of(NodeId old);
  /// Maps the outputs and hands the new graph over.
  Graph finish();

 private:
  /// Fills operands_; whether all have the types that they had.
  bool map_operands(NodeId old);
  NodeId bind_all(NodeId old, NodeId id);
  const Graph& in_;
  Types types_;
  Graph out_;
  std::vector<uint32_t> first_;   // [old node]: where its results stand in map_
  std::vector<ValueId> map_;      // [old value]
  std::vector<uint32_t> scopes_;  // [old scope]: the new one, once it is known
  std::vector<ValueId> operands_;
};

/// Copies every node for which `rewrite` returns false. `rewrite` binds all results when it returns
/// true.
Graph rewrite(const Graph& graph, const std::function<bool(Rewriter&, NodeId)>& rewrite,
              Types types = Types::stay);

/// Drops nodes that no output needs; inputs stay unless `drop_inputs`.
Graph drop_dead(Graph graph, bool drop_inputs = false);

/// Whether a node runs regions.
bool runs_regions(const Graph& graph);

/// `change` applied to every region that a node runs, those inside others first.
Graph change_regions(const Graph& graph, const std::function<Graph(const Graph&)>& change);

/// Binds symbolic dimensions, those in regions too, and infers every type again. Throws UserError
/// for a symbol left unbound when `complete`.
Graph specialize(const Graph& graph, const std::vector<std::pair<std::string, int64_t>>& bindings,
                 bool complete = true);

}  // namespace brrr
