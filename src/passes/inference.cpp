#include "passes/passes.h"

namespace brrr {

Graph inference(const Graph& graph, Notes* notes) {
  int removed = 0;
  Graph out = rewrite(graph, [&](Rewriter& r, NodeId id) {
    const Node& node = r.in().node(id);
    if (node.op->name != "dropout") return false;
    r.bind({id, 0}, r.map(node.operands[0]));
    ++removed;
    return true;
  });
  if (notes && removed) notes->push_back(fmt::format("{} dropouts removed", removed));
  return drop_dead(out);
}

}  // namespace brrr
