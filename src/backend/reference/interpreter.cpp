#include "backend/reference/interpreter.h"

#include "base/errors.h"

namespace brrr::reference {
namespace {

// The error with the scope of the node, as Device::run gives it.
std::vector<RefTensor> evaluate_or_say_where(const Graph& graph, NodeId id,
                                             std::span<const RefTensor* const> in) {
  try {
    return evaluate_node(graph, id, in);
  } catch (const UserError& e) {
    if (graph.scope_of(id).empty()) throw;
    throw UserError(fmt::format("{} (at {})", e.what(), graph.scope_of(id)), e.code());
  }
}

}  // namespace

std::vector<RefTensor> evaluate_node(const Graph& graph, NodeId id,
                                     std::span<const RefTensor* const> in) {
  const Node& node = graph.node(id);
  if (node.op->is_primitive()) {
    std::vector<RefTensor> out;
    for (const Type& t : node.results) out.emplace_back(t);
    node.op->evaluate(EvalContext{node, in, out});
    return out;
  }
  BRRR_CHECK(node.op->is_composite(), "{} has neither loops nor a decomposition", node.op->name);
  Graph inner;
  std::vector<Value> operands;
  Tensors inputs;
  for (size_t i = 0; i < in.size(); ++i) {
    const std::string name = std::to_string(i);
    operands.push_back(inner.input(name, in[i]->type.shape, in[i]->type.dtype));
    inputs[name] = *in[i];
  }
  const auto results = node.op->decompose(DecomposeContext{inner, node, operands});
  for (size_t i = 0; i < results.size(); ++i) inner.output(std::to_string(i), results[i]);
  Tensors named = evaluate(inner, inputs);
  std::vector<RefTensor> out;
  for (size_t i = 0; i < results.size(); ++i) out.push_back(std::move(named[std::to_string(i)]));
  return out;
}

Tensors evaluate(const Graph& graph, const Tensors& inputs) {
  std::vector<std::vector<RefTensor>> values(graph.size());
  auto uses = count_uses(graph);
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (graph.is_input(id)) {
      const auto at = inputs.find(graph.input_name(id));
      if (at == inputs.end()) user_error("the input '{}' has no value", graph.input_name(id));
      if (!(at->second.type == node.results[0]))
        user_error("the input '{}' must be {}; got {}", graph.input_name(id), node.results[0].str(),
                   at->second.type.str());
      values[id].push_back(at->second);
      continue;
    }
    std::vector<const RefTensor*> in;
    for (const ValueId& v : node.operands) in.push_back(&values[v.node][v.port]);
    values[id] = evaluate_or_say_where(graph, id, in);
    for (const ValueId& v : node.operands)
      if (--uses[v.node][v.port] == 0) values[v.node][v.port] = {};
  }
  Tensors out;
  for (const Output& o : graph.outputs()) {
    const std::string name =
        o.updates == kNoNode ? o.name : "update:" + graph.input_name(o.updates);
    out[name] = values[o.value.node][o.value.port];
  }
  return out;
}

Backend backend() {
  Backend b;
  b.name = "reference";
  return b;
}

}  // namespace brrr::reference
