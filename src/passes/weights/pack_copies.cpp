#include "ops/ops.h"
#include "ops/panels.h"
#include "passes/passes.h"
#include "passes/weights/right_operand.h"

namespace brrr {
namespace {

/// A cast of a parameter that is a matrix.
bool is_copy(const Graph& g, ValueId value) {
  const Node& node = g.node(value.node);
  if (!node.op->converts) return false;
  const NodeId from = node.operands[0].node;
  return g.is_input(from) && g.input_kind(from) == InputKind::parameter &&
         g.type(value).shape.rank() == 2;
}

/// Whether the product reads the transpose of a copy; nothing: it reads none, cannot read panels of
/// it, or does not gain by them.
std::optional<bool> reads_transposed(const Graph& g, const Target& target, NodeId id) {
  const Node& node = g.node(id);
  const std::optional<bool> transposed = transposes_right(node);
  if (!transposed || !is_copy(g, node.operands[1]) || !target.gains_by_panels(g, id)) return {};
  if (g.type(node.operands[1]).shape.size(*transposed ? 1 : 0) % kPanelTerms != 0) return {};
  return transposed;
}

bool is_head(const Graph& g, const Target& target, NodeId id) {
  const Node& node = g.node(id);
  return node.op->loss && node.op->loss->from_product && is_copy(g, node.operands[1]) &&
         g.type(node.operands[0]).shape.size(-1) % kPanelTerms == 0 &&
         target.gains_by_panels(g, id);
}

Value panels_of(Value w, bool transpose) {
  return call("panels", {&w, 1}, {{"transpose", transpose}})[0];
}

/// The loss head by panels: those that give logits and, where it gives gradients, others of the
/// transpose for that of x.
std::vector<Value> head_by_panels(const Node& node, std::vector<Value> operands) {
  const bool transposed = node.attrs.get<bool>("transpose_w");
  const Value w = operands[1];
  Attrs attrs = node.attrs;
  attrs.set("panels", true);
  attrs.set("classes", w.shape().size(transposed ? 0 : 1));
  operands[1] = panels_of(w, transposed);
  if (node.op->is_gradient) operands.push_back(panels_of(w, !transposed));
  return call(node.op->name, operands, std::move(attrs));
}

}  // namespace

Graph pack_copies(const Graph& in, const Target& target, Notes* notes) {
  size_t products = 0, heads = 0;
  Graph out = rewrite(in, [&](Rewriter& r, NodeId id) {
    const Node& node = in.node(id);
    if (is_head(in, target, id)) {
      const std::vector<Value> results = head_by_panels(node, r.operands(id));
      for (uint32_t port = 0; port < results.size(); ++port) r.bind({id, port}, results[port]);
      ++heads;
      return true;
    }
    const std::optional<bool> transposed = reads_transposed(in, target, id);
    if (!transposed) return false;
    std::vector<Value> operands = r.operands(id);
    const int64_t columns = operands[1].shape().size(*transposed ? 0 : 1);
    operands[1] = panels_of(operands[1], *transposed);
    r.bind({id, 0}, call(node.op->name, operands, with_right_in_panels(node, columns))[0]);
    ++products;
    return true;
  });
  if (notes && products + heads > 0)
    notes->push_back(fmt::format("{} products{} read copies of weights in panels", products,
                                 heads > 0 ? " and the loss head" : ""));
  return out;
}

}  // namespace brrr
