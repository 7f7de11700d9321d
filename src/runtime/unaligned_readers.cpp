#include "runtime/unaligned_readers.h"

#include <algorithm>

namespace brrr {

UnalignedReaders::UnalignedReaders(const Backend& backend, const Graph& graph)
    : backend_(backend), graph_(graph), readers_(graph.size()) {
  for (NodeId id = 0; id < graph.size(); ++id)
    for (const ValueId& v : graph.node(id).operands)
      if (readers_[v.node].empty() || readers_[v.node].back() != id) readers_[v.node].push_back(id);
}

bool UnalignedReaders::take(NodeId node) {
  return std::ranges::all_of(readers_[node], [&](NodeId reader) { return takes(reader, node); });
}

bool UnalignedReaders::takes(NodeId reader, NodeId node) {
  const Node& n = graph_.node(reader);
  if (view_offset(graph_, n)) return take(reader);
  const KernelEntry* const entry = backend_.choose(NodeView(graph_, reader)).entry;
  if (entry == nullptr) return false;
  for (size_t i = static_cast<size_t>(entry->unaligned_operands); i < n.operands.size(); ++i)
    if (n.operands[i].node == node) return false;
  return true;
}

}  // namespace brrr
