// Composites that the target has no kernel for become what they mean.

#include <map>

#include "passes/passes.h"

namespace brrr {

Graph decompose(const Graph& in, const Target& target, Notes* notes) {
  Graph graph = in;
  std::map<std::string, int> replaced;
  for (bool changed = true; changed;) {
    changed = false;
    graph = rewrite(graph, [&](Rewriter& r, NodeId id) {
      const Node& node = r.in().node(id);
      if (!node.op->is_composite() || target.runs(r.in(), id)) return false;
      const auto operands = r.operands(id);
      const auto results = node.op->decompose(DecomposeContext{r.out(), node, operands});
      for (uint32_t port = 0; port < results.size(); ++port) {
        BRRR_CHECK(results[port].type() == node.results[port],
                   "decomposition of {} gives {} for {}", node.op->name, results[port].type().str(),
                   node.results[port].str());
        r.bind({id, port}, results[port]);
      }
      ++replaced[node.op->name];
      return changed = true;
    });
  }
  if (notes)
    for (const auto& [name, count] : replaced)
      notes->push_back(
          fmt::format("{} has no kernel for {}: {} decomposed", target.name, name, count));
  return graph;
}

}  // namespace brrr
