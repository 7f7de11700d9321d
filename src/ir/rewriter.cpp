#include "ir/rewriter.h"

#include <algorithm>

#include "base/errors.h"

namespace brrr {
namespace {

constexpr uint32_t kNoScope = ~0u;

}  // namespace

Rewriter::Rewriter(const Graph& in, Types types)
    : in_(in), types_(types), scopes_(in.scope_count(), kNoScope) {
  first_.reserve(in.size());
  uint32_t values = 0;
  for (const Node& node : in.nodes()) {
    first_.push_back(values);
    values += static_cast<uint32_t>(node.results.size());
  }
  map_.resize(values);
  out_.reserve(in.size());
}

void Rewriter::enter_scope_of(NodeId old) {
  uint32_t& scope = scopes_[in_.node(old).scope];
  if (scope != kNoScope) return out_.restore_scope(scope);
  out_.set_scope(in_.path_of(old), in_.phase(old));
  scope = out_.current_scope_index();
}

void Rewriter::bind(ValueId old, Value value) {
  const Type &was = in_.type(old), &is = out_.type(value.id);
  BRRR_CHECK(types_ == Types::change || is == was,
             "%{}.{} ({}{}{}) is {}, and what replaces it is {}", old.node, old.port,
             in_.node(old.node).op->name, in_.scope_of(old.node).empty() ? "" : " at ",
             in_.scope_of(old.node), was.str(), is.str());
  map_[first_[old.node] + old.port] = value.id;
}

Value Rewriter::map(ValueId old) {
  const ValueId mapped = map_[first_[old.node] + old.port];
  BRRR_CHECK(mapped.node != kNoNode, "%{}.{} ({}) was not rewritten before its user", old.node,
             old.port, in_.node(old.node).op->name);
  return out_.value(mapped);
}

std::vector<Value> Rewriter::operands(NodeId old) {
  std::vector<Value> values;
  for (const ValueId& v : in_.node(old).operands) values.push_back(map(v));
  return values;
}

bool Rewriter::map_operands(NodeId old) {
  bool same_types = true;
  operands_.clear();
  for (const ValueId& v : in_.node(old).operands) {
    operands_.push_back(map(v).id);
    same_types = same_types && out_.type(operands_.back()) == in_.type(v);
  }
  return same_types;
}

NodeId Rewriter::bind_all(NodeId old, NodeId id) {
  for (uint32_t port = 0; port < in_.node(old).results.size(); ++port)
    bind({old, port}, out_.value(id, port));
  return id;
}

NodeId Rewriter::copy(NodeId old) {
  const Node& node = in_.node(old);
  const bool same_types = map_operands(old);
  enter_scope_of(old);
  return bind_all(
      old, same_types ? out_.add_copy(node, operands_) : out_.add(*node.op, operands_, node.attrs));
}

NodeId Rewriter::copy(NodeId old, Attrs attrs) {
  map_operands(old);
  enter_scope_of(old);
  return bind_all(old, out_.add(*in_.node(old).op, operands_, std::move(attrs)));
}

Graph Rewriter::finish() {
  out_.outputs().reserve(in_.outputs().size());
  const auto input = [&](NodeId old) { return old == kNoNode ? old : map({old, 0}).id.node; };
  for (const Output& o : in_.outputs())
    out_.outputs().push_back({o.name, map(o.value).id, input(o.updates), input(o.gradient_of)});
  out_.set_scope("");
  return std::move(out_);
}

Graph rewrite(const Graph& graph, const std::function<bool(Rewriter&, NodeId)>& rewrite_node,
              Types types) {
  Rewriter rewriter(graph, types);
  for (NodeId id = 0; id < graph.size(); ++id) {
    rewriter.enter_scope_of(id);
    if (!rewrite_node(rewriter, id)) rewriter.copy(id);
  }
  return rewriter.finish();
}

Graph drop_dead(Graph graph, bool drop_inputs) {
  std::vector<bool> live(graph.size());
  for (const Output& o : graph.outputs()) {
    live[o.value.node] = true;
    for (const NodeId input : {o.updates, o.gradient_of})
      if (input != kNoNode) live[input] = true;
  }
  for (NodeId id = static_cast<NodeId>(graph.size()); id-- > 0;) {
    if (!drop_inputs && graph.is_input(id)) live[id] = true;
    if (live[id])
      for (const ValueId& v : graph.node(id).operands) live[v.node] = true;
  }
  if (std::find(live.begin(), live.end(), false) == live.end()) return graph;
  Rewriter rewriter(graph);
  for (NodeId id = 0; id < graph.size(); ++id)
    if (live[id]) rewriter.copy(id);
  return rewriter.finish();
}

bool runs_regions(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const Node& node) { return node.op->runs_regions; });
}

Graph change_regions(const Graph& graph, const std::function<Graph(const Graph&)>& change) {
  return rewrite(graph, [&](Rewriter& r, NodeId id) {
    const Node& node = r.in().node(id);
    if (!node.op->runs_regions) return false;
    Attrs attrs = node.attrs;
    for (auto& [name, value] : attrs)
      if (auto* region = std::get_if<Region>(&value))
        *region = Region(change(change_regions(region->graph(), change)));
    r.copy(id, std::move(attrs));
    return true;
  });
}

Graph specialize(const Graph& graph, const std::vector<std::pair<std::string, int64_t>>& bindings,
                 bool complete) {
  auto bind_shape = [&](const Shape& shape) {
    Shape out = shape;
    for (int axis = 0; axis < out.rank(); ++axis) {
      if (!out[axis].is_symbol()) continue;
      bool found = false;
      for (const auto& [name, size] : bindings)
        if (out[axis].name() == name) {
          out[axis] = Dim(size);
          found = true;
          break;
        }
      if (!found && complete)
        user_error("the symbolic dimension '{}' has no binding", out[axis].name());
    }
    return out;
  };
  Rewriter rewriter(graph, Types::change);
  for (NodeId id = 0; id < graph.size(); ++id) {
    Attrs attrs = graph.node(id).attrs;
    for (auto& [name, value] : attrs)
      if (auto* shape = std::get_if<Shape>(&value))
        *shape = bind_shape(*shape);
      else if (auto* region = std::get_if<Region>(&value))
        *region = Region(specialize(region->graph(), bindings, complete));
    rewriter.copy(id, std::move(attrs));
  }
  return rewriter.finish();
}

}  // namespace brrr
