#include "ir/evaluate.h"

namespace brrr {
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
  for (size_t i = 0; i < in.size(); ++i)
    operands.push_back(inner.input(std::to_string(i), in[i]->type));
  const auto results = node.op->decompose(DecomposeContext{inner, node, operands});
  for (size_t i = 0; i < results.size(); ++i) inner.output(std::to_string(i), results[i]);
  return evaluate_graph(inner, in);
}

std::vector<RefTensor> evaluate_graph(const Graph& graph,
                                      std::span<const RefTensor* const> inputs) {
  std::vector<std::vector<RefTensor>> values(graph.size());
  auto uses = count_uses(graph);
  size_t next_input = 0;
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (graph.is_input(id)) {
      values[id].push_back(*inputs[next_input++]);
      continue;
    }
    std::vector<const RefTensor*> in;
    for (const ValueId& v : node.operands) in.push_back(&values[v.node][v.port]);
    try {
      values[id] = evaluate_node(graph, id, in);
    } catch (const UserError& e) {
      if (graph.scope_of(id).empty()) throw;
      throw UserError(fmt::format("{} (at {})", e.what(), graph.scope_of(id)), e.code());
    }
    for (const ValueId& v : node.operands)
      if (--uses[v.node][v.port] == 0) values[v.node][v.port] = {};
  }
  std::vector<RefTensor> out;
  for (const Output& o : graph.outputs()) out.push_back(values[o.value.node][o.value.port]);
  return out;
}

}  // namespace brrr
