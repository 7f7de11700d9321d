#pragma once
// The graph: a value type. Nodes stand in one vector, operands always earlier than their users, so
// a pass is one forward loop, and copying, comparing and printing are trivial. The graph knows no
// op and no device: what an op means stands in its OpDef.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/storage.h"
#include "ir/attrs.h"
#include "ir/name_index.h"

namespace brrr {

struct OpDef;
class Graph;

/// dtype and shape of one tensor, and how it lies in memory.
struct Type {
  DType dtype = DType::f32;
  Shape shape;
  Storage storage = {};
  bool operator==(const Type&) const = default;
  /// Throws InternalError for a symbolic shape, UserError when the count does not fit 63 bits.
  int64_t bytes() const;
  /// "bf16[8,1024,768]", "bf16[768,2304]/panels"
  std::string str() const;
};

/// Names of two boolean attributes of parameters in training graphs; an absent one means true.
inline constexpr std::string_view kTrained = "trained", kDecays = "decays";

using NodeId = uint32_t;
inline constexpr NodeId kNoNode = ~NodeId{0};

/// Result `port` of node `node`.
struct ValueId {
  NodeId node = kNoNode;
  uint32_t port = 0;
  bool operator==(const ValueId&) const = default;
  auto operator<=>(const ValueId&) const = default;
};

/// A handle for building: a result inside a graph. Valid while that Graph object lives and is not
/// moved.
struct Value {
  Graph* graph = nullptr;
  ValueId id;
  const Type& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
};

/// Which part of a step a node belongs to. The text form prints it before the path: "backward:h.3".
enum class Phase : uint8_t {
  forward,  // of training, and all of inference
  backward,
  recompute,  // forward nodes that run again for the backward pass
  optimizer,
};

/// A scope: the phase of the step and the layer of the model that nodes belong to.
struct ScopeInfo {
  Phase phase = Phase::forward;
  std::string path;    // "h.3.attn"
  std::string text;    // with the phase: "backward:h.3.attn"
  int64_t layer = -1;  // the first number of the path; -1: none
  size_t block = 0;    // length of the path up to that number: that of "h.3"
};

struct Node {
  const OpDef* op = nullptr;
  Attrs attrs;
  std::vector<ValueId> operands;
  std::vector<Type> results;
  uint32_t scope = 0;  // index of a ScopeInfo in the graph
  bool operator==(const Node&) const = default;
};

/// What an `input` node is. The text form prints it as {kind}.
enum class Role {
  data,          // given to every run
  parameter,     // a weight, as models name it
  state,         // a state of no special meaning
  moment,        // what an optimizer keeps of one parameter's gradients
  gradient_sum,  // the gradients of one parameter, summed over the micro-batches of a step
  loss_scale,    // the loss scale of f16 gradients, and the counters that move it
  cache,         // the keys or values of earlier tokens
  derived,       // a weight in another form (passes/weights/derived_weight.h)
};
std::string_view name_of(Role role);
std::optional<Role> role_from_name(std::string_view name);
/// Every role, for messages.
std::string role_names();
/// Whether a checkpoint holds what an input of this role held, beside the parameters.
bool is_kept_between_steps(Role role);

/// How long an input lives: data for one run of a program; parameters and state from run to run.
enum class InputKind { data, parameter, state };
InputKind kind_of(Role role);

struct Output {
  std::string name;
  ValueId value;
  NodeId updates = kNoNode;  // the state or parameter input that takes this value for the next run
  NodeId gradient_of = kNoNode;  // the parameter whose gradient this is
  bool operator==(const Output&) const = default;
};

class Graph {
 public:
  Graph() { set_scope(""); }

  // -- building
  // ------------------------------------------------------------------------------------
  /// A named input; `more` attributes say what its role alone does not. Throws UserError when the
  /// name is taken.
  Value input(std::string_view name, Type type, Role role = Role::data, Attrs more = {});
  Value input(std::string_view name, Shape shape, DType dtype, Role role = Role::data) {
    return input(name, Type{dtype, std::move(shape)}, role);
  }
  /// The role that has the name of the kind.
  Value input(std::string_view name, Type type, InputKind kind);
  Value input(std::string_view name, Shape shape, DType dtype, InputKind kind) {
    return input(name, Type{dtype, std::move(shape)}, kind);
  }
  Value parameter(std::string_view name, Shape shape, DType dtype = DType::f32) {
    return input(name, std::move(shape), dtype, Role::parameter);
  }
  /// Appends a node; its result types come from the op's infer. Throws UserError as infer does.
  NodeId add(const OpDef& op, std::span<const ValueId> operands, Attrs attrs = {});
  /// Room for so many nodes.
  void reserve(size_t nodes) { nodes_.reserve(nodes); }
  /// Appends a copy of a node of another graph, whose operands here have the types that they have
  /// there: nothing is inferred again.
  NodeId add_copy(const Node& node, std::span<const ValueId> operands);
  Value output(std::string_view name, Value value);
  /// The output "grad:<parameter>".
  void gradient(Value parameter, Value value);
  /// `value` becomes the content of `state` (an input of kind parameter or state) for the next run.
  void update(Value state, Value value);

  /// Places the nodes that are added from now on; returns the previous scope's index.
  uint32_t set_scope(std::string_view path, Phase phase = Phase::forward);
  void restore_scope(uint32_t scope) { current_scope_ = scope; }
  const ScopeInfo& current_scope() const { return scopes_[current_scope_]; }
  uint32_t current_scope_index() const { return current_scope_; }

  // -- reading
  // -------------------------------------------------------------------------------------
  size_t size() const { return nodes_.size(); }
  const std::vector<Node>& nodes() const { return nodes_; }
  const Node& node(NodeId id) const { return nodes_[id]; }
  Node& node(NodeId id) { return nodes_[id]; }
  const Type& type(ValueId v) const { return nodes_[v.node].results[v.port]; }
  Value value(ValueId v) { return Value{this, v}; }
  Value value(NodeId n, uint32_t port = 0) { return Value{this, {n, port}}; }
  const std::vector<Output>& outputs() const { return outputs_; }
  std::vector<Output>& outputs() { return outputs_; }
  const Output* find_output(std::string_view name) const;
  /// For messages and for the text form: phase and path.
  const std::string& scope_of(NodeId id) const { return scopes_[nodes_[id].scope].text; }
  Phase phase(NodeId id) const { return scopes_[nodes_[id].scope].phase; }
  const std::string& path_of(NodeId id) const { return scopes_[nodes_[id].scope].path; }
  int64_t layer(NodeId id) const { return scopes_[nodes_[id].scope].layer; }
  /// The numbered block that the node belongs to: "h.3"; empty outside of blocks.
  std::string_view block_of(NodeId id) const {
    const ScopeInfo& scope = scopes_[nodes_[id].scope];
    return std::string_view(scope.path).substr(0, scope.block);
  }
  size_t scope_count() const { return scopes_.size(); }

  bool is_input(NodeId id) const;
  Role role(NodeId id) const;
  InputKind input_kind(NodeId id) const { return kind_of(role(id)); }
  const std::string& input_name(NodeId id) const;
  /// Whether training changes the parameter. A frozen one gets neither gradient nor moments.
  bool is_trained(NodeId parameter) const;
  void freeze(NodeId parameter);
  /// Whether weight decay applies to the parameter, as its declaration says.
  bool is_decayed(NodeId parameter) const;
  /// Ids of all inputs, or of those of one kind, in order.
  const std::vector<NodeId>& inputs() const { return inputs_; }
  std::vector<NodeId> inputs(InputKind kind) const;
  /// The input of that name, or kNoNode.
  NodeId find_input(std::string_view name) const;

  bool operator==(const Graph& other) const;

 private:
  NodeId append(Node node);

  std::vector<Node> nodes_;
  std::vector<NodeId> inputs_;
  NameIndex input_index_;  // of positions in inputs_
  std::vector<Output> outputs_;
  std::vector<ScopeInfo> scopes_;
  NameIndex scope_index_;
  uint32_t current_scope_ = 0;
};

inline const Type& Value::type() const { return graph->type(id); }

/// Nodes built while it lives belong to `parent.name`.
class Scope {
 public:
  Scope(Graph& graph, std::string_view name);
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() { graph_.restore_scope(previous_); }

 private:
  Graph& graph_;
  uint32_t previous_;
};

/// The graphs of a node's regions, in the order of their attributes.
std::vector<const Graph*> regions_of(const Node& node);

/// How many times each result is used, outputs included: uses[node][port].
std::vector<std::vector<uint32_t>> count_uses(const Graph& graph);

}  // namespace brrr
