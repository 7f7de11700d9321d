#include "ops/backpropagate.h"

#include "ir/rewriter.h"
#include "ops/support.h"

namespace brrr::ops {

Graph without_opaque_composites(Graph graph) {
  for (bool changed = true; changed;) {
    changed = false;
    graph = rewrite(graph, [&](Rewriter& r, NodeId id) {
      const Node& node = r.in().node(id);
      if (node.op->vjp || !node.op->is_composite()) return false;
      const auto operands = r.operands(id);
      const auto results = node.op->decompose(DecomposeContext{r.out(), node, operands});
      for (uint32_t port = 0; port < results.size(); ++port) r.bind({id, port}, results[port]);
      return changed = true;
    });
  }
  return graph;
}

std::vector<Value> inline_region(Graph& g, const Graph& region, std::span<const Value> inputs) {
  std::vector<NodeId> map(region.size());
  std::vector<ValueId> given(region.size());
  for (size_t i = 0; i < inputs.size(); ++i) given[region.inputs()[i]] = inputs[i].id;
  const auto mapped = [&](ValueId v) {
    return region.is_input(v.node) ? given[v.node] : ValueId{map[v.node], v.port};
  };
  for (NodeId id = 0; id < region.size(); ++id) {
    if (region.is_input(id)) continue;
    std::vector<ValueId> operands;
    for (const ValueId& v : region.node(id).operands) operands.push_back(mapped(v));
    map[id] = g.add_copy(region.node(id), operands);
  }
  std::vector<Value> outputs;
  for (const Output& o : region.outputs()) outputs.push_back(g.value(mapped(o.value)));
  return outputs;
}

std::vector<Value> backpropagate(Graph& g, NodeId first, std::span<const Seed> seeds,
                                 std::span<const Value> wanted, std::string_view caller) {
  const auto end = static_cast<NodeId>(g.size());
  std::vector<char> is_wanted(end), depends(end);
  for (const Value& v : wanted) is_wanted[v.id.node] = depends[v.id.node] = 1;
  std::vector<std::vector<Value>> gradients(end);
  for (NodeId id = 0; id < end; ++id) gradients[id].resize(g.node(id).results.size());
  for (NodeId id = first; id < end; ++id)
    for (const ValueId& v : g.node(id).operands)
      if (depends[v.node] && is_float(g.type(v).dtype)) depends[id] = 1;
  const auto add = [&](ValueId v, Value gradient) {
    Value& total = gradients[v.node][v.port];
    total = total.graph == nullptr ? gradient : total + gradient;
  };
  for (const Seed& s : seeds)
    if (depends[s.value.id.node]) add(s.value.id, s.gradient);

  for (NodeId id = end; id-- > first;) {
    if (!depends[id] || is_wanted[id] || g.is_input(id)) continue;
    if (std::ranges::none_of(gradients[id], [](const Value& v) { return v.graph != nullptr; }))
      continue;
    const std::vector<ValueId> operands = g.node(id).operands;
    std::vector<bool> wants;
    for (const ValueId& v : operands)
      wants.push_back(depends[v.node] != 0 && is_float(g.type(v).dtype));
    const OpDef& op = *g.node(id).op;
    if (!op.vjp)
      user_error("[{}] its gradient passes through {}, which has no derivative: {}", caller,
                 op.name, op.no_gradient);
    VjpContext context(g, id, gradients[id], wants);
    op.vjp(context);
    for (size_t i = 0; i < operands.size(); ++i)
      if (wants[i] && context.grads()[i].graph != nullptr) add(operands[i], context.grads()[i]);
  }
  std::vector<Value> results;
  for (const Value& v : wanted) results.push_back(gradients[v.id.node][v.id.port]);
  return results;
}

void differentiate_decomposition(VjpContext& c) {
  Graph& g = c.graph;
  const Node node = c.node();  // a copy: the graph grows
  std::vector<Value> operands, wanted;
  std::vector<size_t> places;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    operands.push_back(c.operand(i));
    if (!c.wants(i)) continue;
    wanted.push_back(operands.back());
    places.push_back(i);
  }
  const auto first = static_cast<NodeId>(g.size());
  const auto results = node.op->decompose(DecomposeContext{g, node, operands});
  std::vector<Seed> seeds;
  for (uint32_t i = 0; i < results.size(); ++i)
    if (c.has_grad(i)) seeds.push_back({results[i], c.grad(i)});
  const auto gradients = backpropagate(g, first, seeds, wanted, node.op->name);
  for (size_t i = 0; i < places.size(); ++i)
    if (gradients[i].graph != nullptr) c.set(places[i], gradients[i]);
}

}  // namespace brrr::ops
