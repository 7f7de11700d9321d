#include "ir/graph.h"

#include <algorithm>
#include <charconv>
#include <type_traits>

#include "base/errors.h"
#include "ir/op_def.h"

namespace brrr {

// Value::type() hands out references; they survive growth of the node vector because nodes are
// moved.
static_assert(std::is_nothrow_move_constructible_v<Node>);

namespace {

struct RoleRow {
  Role role;
  std::string_view name;
  InputKind kind;
  bool is_kept;  // in checkpoints, beside the parameters
};
constexpr RoleRow kRoles[] = {
    {Role::data, "data", InputKind::data, false},
    {Role::parameter, "parameter", InputKind::parameter, false},
    {Role::state, "state", InputKind::state, true},
    {Role::moment, "moment", InputKind::state, true},
    {Role::gradient_sum, "gradient_sum", InputKind::state, false},
    {Role::loss_scale, "loss_scale", InputKind::state, true},
    {Role::cache, "cache", InputKind::state, false},
    {Role::derived, "derived", InputKind::state, false},
};
const RoleRow& row_of(Role role) { return kRoles[static_cast<size_t>(role)]; }

}  // namespace

std::string_view name_of(Role role) { return row_of(role).name; }
InputKind kind_of(Role role) { return row_of(role).kind; }
bool is_kept_between_steps(Role role) { return row_of(role).is_kept; }

std::optional<Role> role_from_name(std::string_view name) {
  for (const RoleRow& row : kRoles)
    if (row.name == name) return row.role;
  return std::nullopt;
}

std::string role_names() {
  std::string names;
  for (const RoleRow& row : kRoles) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

std::string_view name_of(OpClass c) {
  switch (c) {
    case OpClass::contraction:
      return "contraction";
    case OpClass::normalisation:
      return "normalisation";
    case OpClass::elementwise:
      return "element-wise";
    case OpClass::movement:
      return "movement";
    case OpClass::leaf:
      return "leaf";
    case OpClass::optimizer:
      return "optimizer";
    case OpClass::control:
      return "control flow";
  }
  return "?";
}

void InferContext::fail_text(const std::string& message) const {
  throw UserError(fmt::format("[{}] {}", op.name, message));
}

Storage storage_of(const InferContext& c, DType dtype, const Shape& shape) {
  const std::string& name = c.attr<std::string>("storage");
  const std::optional<Storage> storage = storage_from_name(name);
  if (!storage) c.fail("storage is one of {}; got '{}'", storage_names(), name);
  if (const std::string why = storage_refusal(*storage, dtype, shape); !why.empty())
    c.fail_text(why);
  return *storage;
}

const OpDef& input_op() {
  static const OpDef op = [] {
    OpDef d;
    d.name = "input";
    d.doc =
        "A named tensor from outside: data of one step, a parameter, or other state. {name, kind, "
        "dtype, shape}, {storage} where it does not lie in rows, and what else its kind asks for";
    d.op_class = OpClass::leaf;
    d.no_gradient = "it is where differentiation ends";
    d.infer = [](const InferContext& c) {
      const std::string& kind = c.attr<std::string>("kind");
      if (!role_from_name(kind)) c.fail("kind is one of {}; got '{}'", role_names(), kind);
      c.attr<std::string>("name");
      if (!c.in.empty()) c.fail("takes no operands; got {}", c.in.size());
      Type type{c.attr<DType>("dtype"), c.attr<Shape>("shape")};
      if (c.attrs.find("storage") != nullptr) type.storage = storage_of(c, type.dtype, type.shape);
      return std::vector<Type>{std::move(type)};
    };
    d.cost = [](const Node&, std::span<const Type>) { return Cost{}; };
    return d;
  }();
  return op;
}

Value Graph::input(std::string_view name, Type type, Role role, Attrs more) {
  if (find_input(name) != kNoNode) user_error("[input] the name '{}' is taken", name);
  more.set("name", std::string(name));
  more.set("kind", std::string(name_of(role)));
  more.set("dtype", type.dtype);
  more.set("shape", std::move(type.shape));
  if (!type.storage.is_plain()) more.set("storage", type.storage.str());
  return value(add(input_op(), {}, std::move(more)));
}

Value Graph::input(std::string_view name, Type type, InputKind kind) {
  constexpr Role kPlain[] = {Role::data, Role::parameter, Role::state};
  return input(name, std::move(type), kPlain[static_cast<size_t>(kind)]);
}

void check_storage(const OpDef& op, std::span<const Type> in, std::span<const Type> out) {
  for (size_t i = 0; i < in.size(); ++i)
    if (!in[i].storage.is_plain() && !op.reads_stored(i))
      user_error("[{}] operand {} must lie in rows; got {}", op.name, i, in[i].str());
  for (const Type& t : out)
    if (const std::string why = storage_refusal(t.storage, t.dtype, t.shape); !why.empty())
      user_error("[{}] {}", op.name, why);
}

NodeId Graph::add(const OpDef& op, std::span<const ValueId> operands, Attrs attrs) {
  Node node;
  node.op = &op;
  node.operands.assign(operands.begin(), operands.end());
  node.attrs = std::move(attrs);
  node.scope = current_scope_;
  for (const ValueId& v : operands)
    BRRR_CHECK(v.node < nodes_.size() && v.port < nodes_[v.node].results.size(),
               "{} reads %{}.{}, which does not exist", op.name, v.node, v.port);
  const std::vector<Type> in = operand_types(*this, node);
  try {
    node.results = op.infer(InferContext{op, in, node.attrs});
    check_storage(op, in, node.results);
  } catch (const UserError& e) {
    if (current_scope().text.empty()) throw;
    throw UserError(fmt::format("{} (at {})", e.what(), current_scope().text), e.code());
  }
  return append(std::move(node));
}

NodeId Graph::add_copy(const Node& original, std::span<const ValueId> operands) {
  Node node;
  node.op = original.op;
  node.attrs = original.attrs;
  node.operands.assign(operands.begin(), operands.end());
  node.results = original.results;
  node.scope = current_scope_;
  return append(std::move(node));
}

NodeId Graph::append(Node node) {
  const auto id = static_cast<NodeId>(nodes_.size());
  nodes_.push_back(std::move(node));
  if (is_input(id)) {
    inputs_.push_back(id);
    input_index_.add([&](uint32_t i) -> const std::string& { return input_name(inputs_[i]); });
  }
  return id;
}

Value Graph::output(std::string_view name, Value value) {
  BRRR_CHECK(value.graph == this, "output '{}' belongs to another graph", name);
  if (find_output(name)) user_error("the output name '{}' is taken", name);
  outputs_.push_back({std::string(name), value.id});
  return value;
}

void Graph::gradient(Value parameter, Value value) {
  const NodeId of = parameter.id.node;
  BRRR_CHECK(is_input(of) && input_kind(of) == InputKind::parameter,
             "only parameters have gradients");
  BRRR_CHECK(value.graph == this, "the gradient of '{}' belongs to another graph", input_name(of));
  outputs_.push_back({"grad:" + input_name(of), value.id, kNoNode, of});
}

void Graph::update(Value state, Value value) {
  BRRR_CHECK(is_input(state.id.node) && input_kind(state.id.node) != InputKind::data,
             "only parameters and state are updated");
  BRRR_CHECK(type(state.id) == type(value.id), "update of {} of type {} with {}",
             input_name(state.id.node), type(state.id).str(), type(value.id).str());
  outputs_.push_back({input_name(state.id.node), value.id, state.id.node});
}

int64_t Type::bytes() const { return stored_bytes(storage, dtype, shape); }

std::string Type::str() const {
  std::string text = std::string(name_of(dtype)) + shape.str();
  if (!storage.is_plain()) text += "/" + storage.str();
  return text;
}

namespace {

/// Finds the first part of the path that is a number.
void find_layer(ScopeInfo& scope) {
  const std::string& path = scope.path;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(path.data() + begin, path.data() + end, number);
    if (end > begin && error == std::errc() && stop == path.data() + end && number >= 0) {
      scope.layer = number;
      scope.block = end;
      return;
    }
    begin = end + 1;
  }
}

ScopeInfo scope_at(std::string_view path, Phase phase) {
  constexpr std::string_view kPrefixes[] = {"", "backward:", "recompute:", "optimizer"};
  ScopeInfo scope{phase, std::string(path), std::string(kPrefixes[static_cast<size_t>(phase)])};
  scope.text += (phase == Phase::optimizer && !path.empty() ? ":" : "") + scope.path;
  find_layer(scope);
  return scope;
}

}  // namespace

uint32_t Graph::set_scope(std::string_view path, Phase phase) {
  BRRR_CHECK(path.find_first_of(" \t\r\n") == std::string_view::npos,
             "the scope '{}' holds a space: it could not be printed and parsed", path);
  const uint32_t previous = current_scope_;
  ScopeInfo scope = scope_at(path, phase);
  const auto text_at = [&](uint32_t i) -> const std::string& { return scopes_[i].text; };
  current_scope_ = scope_index_.find(scope.text, text_at);
  if (current_scope_ == NameIndex::kNone) {
    current_scope_ = static_cast<uint32_t>(scopes_.size());
    scopes_.push_back(std::move(scope));
    scope_index_.add(text_at);
  }
  return previous;
}

const Output* Graph::find_output(std::string_view name) const {
  for (const Output& o : outputs_)
    if (o.name == name && o.updates == kNoNode) return &o;
  return nullptr;
}

bool Graph::is_input(NodeId id) const { return nodes_[id].op == &input_op(); }

Role Graph::role(NodeId id) const {
  return *role_from_name(nodes_[id].attrs.get<std::string>("kind"));
}

const std::string& Graph::input_name(NodeId id) const {
  return nodes_[id].attrs.get<std::string>("name");
}

bool Graph::is_trained(NodeId parameter) const {
  return nodes_[parameter].attrs.get_or<bool>(kTrained, true);
}
void Graph::freeze(NodeId parameter) { nodes_[parameter].attrs.set(kTrained, false); }
bool Graph::is_decayed(NodeId parameter) const {
  return nodes_[parameter].attrs.get_or<bool>(kDecays, true);
}

std::vector<NodeId> Graph::inputs(InputKind kind) const {
  std::vector<NodeId> out;
  for (NodeId id : inputs_)
    if (input_kind(id) == kind) out.push_back(id);
  return out;
}

NodeId Graph::find_input(std::string_view name) const {
  const uint32_t i = input_index_.find(
      name, [&](uint32_t at) -> const std::string& { return input_name(inputs_[at]); });
  return i == NameIndex::kNone ? kNoNode : inputs_[i];
}

bool Graph::operator==(const Graph& other) const {
  if (nodes_.size() != other.nodes_.size() || outputs_ != other.outputs_) return false;
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    const Node &a = nodes_[id], &b = other.nodes_[id];
    if (a.op != b.op || a.attrs != b.attrs || a.operands != b.operands || a.results != b.results ||
        scope_of(id) != other.scope_of(id))
      return false;
  }
  return true;
}

Scope::Scope(Graph& graph, std::string_view name) : graph_(graph) {
  const ScopeInfo& parent = graph.current_scope();
  std::string path = parent.path.empty() ? "" : parent.path + ".";
  previous_ = graph.set_scope(path.append(name), parent.phase);
}

std::vector<const Graph*> regions_of(const Node& node) {
  std::vector<const Graph*> graphs;
  for (const auto& [name, value] : node.attrs)
    if (const auto* region = std::get_if<Region>(&value)) graphs.push_back(&region->graph());
  return graphs;
}

std::vector<std::vector<uint32_t>> count_uses(const Graph& graph) {
  std::vector<std::vector<uint32_t>> uses(graph.size());
  for (NodeId id = 0; id < graph.size(); ++id) uses[id].resize(graph.node(id).results.size());
  for (const Node& node : graph.nodes())
    for (const ValueId& v : node.operands) ++uses[v.node][v.port];
  for (const Output& o : graph.outputs()) ++uses[o.value.node][o.value.port];
  return uses;
}

std::vector<Type> operand_types(const Graph& graph, const Node& node) {
  std::vector<Type> types;
  types.reserve(node.operands.size());
  for (const ValueId& v : node.operands) types.push_back(graph.type(v));
  return types;
}

std::optional<int64_t> view_offset(const Graph& graph, const Node& node) {
  if (!node.op->view) return std::nullopt;
  return node.op->view(node, operand_types(graph, node));
}

Cost cost_of(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const std::vector<Type> in = operand_types(graph, node);
  if (node.op->cost) return node.op->cost(node, in);
  Cost cost;
  for (const Type& t : in) cost.bytes_read += static_cast<double>(t.bytes());
  for (const Type& t : node.results) cost.bytes_written += static_cast<double>(t.bytes());
  return cost;
}

}  // namespace brrr
