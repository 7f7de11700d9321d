#include <map>
#include <set>

#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {

Graph save_old_states(const Graph& graph, Notes* notes) {
  std::set<NodeId> updated;
  for (const Output& o : graph.outputs())
    if (o.updates != kNoNode && o.value != ValueId{o.updates, 0}) updated.insert(o.updates);

  // Output index by the node whose value it shows, where that is an old state or a view of one.
  std::multimap<NodeId, size_t> wanted;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Output& o = graph.outputs()[i];
    ValueId v = o.value;
    while (view_offset(graph, graph.node(v.node))) v = graph.node(v.node).operands[0];
    if (updated.contains(v.node) && o.updates != v.node) wanted.emplace(o.value.node, i);
  }
  if (wanted.empty()) return graph;

  Rewriter rewriter(graph);
  std::map<size_t, ValueId> saved;
  for (NodeId id = 0; id < graph.size(); ++id) {
    rewriter.copy(id);
    const auto [begin, end] = wanted.equal_range(id);
    if (begin == end) continue;
    const Value old = rewriter.map({id, 0});
    const Value copy = broadcast_to(old, old.shape());
    for (auto at = begin; at != end; ++at) saved[at->second] = copy.id;
  }
  Graph out = rewriter.finish();
  for (const auto& [index, value] : saved) out.outputs()[index].value = value;
  if (notes)
    notes->push_back(
        fmt::format("{} outputs show a state as it was before its update", saved.size()));
  return out;
}

}  // namespace brrr
