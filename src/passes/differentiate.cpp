// Reverse-mode differentiation: one backward loop that asks each op for its vjp.

#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {
namespace {

bool is_trained_parameter(const Graph& graph, NodeId id) {
  return graph.is_input(id) && graph.input_kind(id) == InputKind::parameter && graph.is_trained(id);
}

// Which nodes depend on a trained parameter, and so may need a gradient.
std::vector<bool> depends_on_parameters(const Graph& graph) {
  std::vector<bool> depends(graph.size());
  for (NodeId id = 0; id < graph.size(); ++id) {
    depends[id] = is_trained_parameter(graph, id);
    for (const ValueId& v : graph.node(id).operands) depends[id] = depends[id] || depends[v.node];
  }
  return depends;
}

std::vector<bool> reaches(const Graph& graph, NodeId target) {
  std::vector<bool> out(graph.size());
  out[target] = true;
  for (NodeId id = target + 1; id-- > 0;)
    if (out[id])
      for (const ValueId& v : graph.node(id).operands) out[v.node] = true;
  return out;
}

// Replaces composites that have no vjp of their own and lie on the way, until none is left.
Graph open_composites(Graph graph, const std::string& loss) {
  for (bool changed = true; changed;) {
    changed = false;
    const auto depends = depends_on_parameters(graph);
    const auto reaching = reaches(graph, graph.find_output(loss)->value.node);
    graph = rewrite(graph, [&](Rewriter& r, NodeId id) {
      const Node& node = r.in().node(id);
      if (!depends[id] || !reaching[id] || node.op->vjp || !node.op->is_composite()) return false;
      const auto operands = r.operands(id);
      const auto results = node.op->decompose(DecomposeContext{r.out(), node, operands});
      for (uint32_t port = 0; port < results.size(); ++port) r.bind({id, port}, results[port]);
      return changed = true;
    });
  }
  return graph;
}

}  // namespace

Graph differentiate(const Graph& in, const std::string& loss, Notes* notes) {
  const Output* out = in.find_output(loss);
  if (out == nullptr) user_error("[differentiate] the graph has no output '{}'", loss);
  if (in.type(out->value).shape.rank() != 0 || !is_float(in.type(out->value).dtype))
    user_error("[differentiate] the loss '{}' must be a floating-point scalar; got {}", loss,
               in.type(out->value).str());

  Graph g = open_composites(in, loss);
  const ValueId root = g.find_output(loss)->value;
  const NodeId forward_size = static_cast<NodeId>(g.size());
  const auto depends = depends_on_parameters(g);

  std::vector<std::vector<Value>> grads(forward_size);
  for (NodeId id = 0; id < forward_size; ++id) grads[id].resize(g.node(id).results.size());
  g.set_scope(g.path_of(root.node), Phase::backward);
  grads[root.node][root.port] = full(g, {}, 1, g.type(root).dtype);

  for (NodeId id = root.node + 1; id-- > 0;) {
    bool any = false;
    for (const Value& v : grads[id]) any = any || v.graph != nullptr;
    if (!any || !depends[id] || g.is_input(id)) continue;
    const OpDef& op = *g.node(id).op;
    const std::vector<ValueId> operands = g.node(id).operands;
    std::vector<bool> wanted;
    bool wants_any = false;
    for (const ValueId& v : operands) {
      wanted.push_back(depends[v.node] && is_float(g.type(v).dtype));
      wants_any = wants_any || wanted.back();
    }
    if (!wants_any) continue;
    if (!op.vjp)
      user_error(
          "[differentiate] '{}' depends on a parameter through {}{}, which has no derivative: {}",
          loss, op.name, g.scope_of(id).empty() ? "" : fmt::format(" (at {})", g.scope_of(id)),
          op.no_gradient);
    g.set_scope(g.path_of(id), Phase::backward);
    VjpContext context(g, id, grads[id], wanted);
    op.vjp(context);
    for (size_t i = 0; i < operands.size(); ++i) {
      const Value grad = context.grads()[i];
      if (!wanted[i] || grad.graph == nullptr) continue;
      BRRR_CHECK(grad.type() == g.type(operands[i]),
                 "the vjp of {} gives operand {} of type {} a gradient of type {}", op.name, i,
                 g.type(operands[i]).str(), grad.type().str());
      Value& total = grads[operands[i].node][operands[i].port];
      total = total.graph == nullptr ? grad : total + grad;
    }
  }
  for (NodeId id : g.inputs(InputKind::parameter)) {
    if (!g.is_trained(id)) continue;
    g.set_scope(g.path_of(id), Phase::backward);
    Value grad = id < forward_size ? grads[id][0] : Value{};
    if (grad.graph == nullptr) {
      grad = full(g, g.type({id, 0}).shape, 0, g.type({id, 0}).dtype);
      if (notes) notes->push_back(fmt::format("{} does not reach the loss", g.input_name(id)));
    }
    g.gradient(g.value(id), grad);
  }
  g.set_scope("");
  if (notes)
    notes->push_back(
        fmt::format("{} forward nodes, {} backward", forward_size, g.size() - forward_size));
  return g;
}

}  // namespace brrr
