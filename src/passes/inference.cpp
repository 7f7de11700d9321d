#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {

Graph inference(const Graph& graph, Notes* notes) {
  int removed = 0;
  Graph out = rewrite(graph, [&](Rewriter& r, NodeId id) {
    const Node& node = r.in().node(id);
    if (node.op->is_attention && node.attrs.get<double>("p") > 0) {
      std::vector<Value> operands = r.operands(id);
      operands.pop_back();  // the key
      Attrs attrs = node.attrs;
      attrs.set("p", 0.0);
      const auto results = call(*node.op, operands, attrs);
      for (uint32_t port = 0; port < results.size(); ++port) r.bind({id, port}, results[port]);
    } else if (node.op->draws_random && node.op->op_class == OpClass::elementwise) {
      r.bind({id, 0}, r.map(node.operands[0]));
    } else {
      return false;
    }
    ++removed;
    return true;
  });
  if (notes && removed) notes->push_back(fmt::format("{} dropouts removed", removed));
  return drop_dead(out);
}

}  // namespace brrr
