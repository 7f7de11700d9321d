// List scheduling for memory: the order of independent nodes decides how many bytes live at once.
// Backward nodes that produce parameter gradients are taken as soon as their operands exist, so
// that the activations they read die early; constants and other leaves wait until their first
// reader.

#include "ir/op_def.h"
#include "passes/passes.h"

namespace brrr {
namespace {

// Bytes that are freed minus bytes that are taken when the node runs next.
int64_t gain(const Graph& g, NodeId id, const std::vector<std::vector<uint32_t>>& uses_left) {
  int64_t bytes = 0;
  const Node& node = g.node(id);
  if (!view_offset(g, node))
    for (const Type& t : node.results) bytes -= t.bytes();
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const ValueId v = node.operands[i];
    uint32_t here = 0;
    bool first = true;
    for (size_t j = 0; j < node.operands.size(); ++j)
      if (node.operands[j] == v) {
        ++here;
        if (j < i) first = false;
      }
    if (first && !g.is_input(v.node) && uses_left[v.node][v.port] == here)
      bytes += g.type(v).bytes();
  }
  return bytes;
}

}  // namespace

Graph schedule(const Graph& g, Notes* notes) {
  const size_t n = g.size();
  std::vector<uint32_t> waiting(n);
  std::vector<std::vector<NodeId>> users(n);
  for (NodeId id = 0; id < n; ++id)
    for (const ValueId& v : g.node(id).operands) {
      ++waiting[id];
      users[v.node].push_back(id);
    }
  auto uses_left = count_uses(g);

  // Nodes run in their old order, except that one that frees memory, or takes none, runs at once.
  std::vector<NodeId> order;
  std::vector<bool> done(n), late(n);
  order.reserve(n);
  // A leaf that is not an input is emitted just before its first reader.
  for (NodeId id = 0; id < n; ++id) late[id] = g.node(id).operands.empty() && !g.is_input(id);
  std::vector<NodeId> candidates;
  auto emit = [&](NodeId id) {
    for (const ValueId& v : g.node(id).operands)
      if (late[v.node] && !done[v.node]) {
        done[v.node] = true;
        order.push_back(v.node);
      }
    done[id] = true;
    order.push_back(id);
    for (const ValueId& v : g.node(id).operands) --uses_left[v.node][v.port];
    // Newly ready nodes, and the other readers of the operands: one may now be the last.
    for (const ValueId& v : g.node(id).operands)
      for (NodeId user : users[v.node]) candidates.push_back(user);
    for (NodeId user : users[id]) {
      --waiting[user];
      candidates.push_back(user);
    }
  };
  auto emit_all_that_free = [&] {
    while (!candidates.empty()) {
      const NodeId id = candidates.back();
      candidates.pop_back();
      if (!done[id] && waiting[id] == 0 && gain(g, id, uses_left) >= 0) emit(id);
    }
  };
  for (NodeId id = 0; id < n; ++id)
    if (late[id])
      for (NodeId user : users[id]) --waiting[user];
  // Inputs are there before anything runs: no node waits because its state stands far below.
  for (NodeId id = 0; id < n; ++id)
    if (g.is_input(id)) emit(id);
  candidates.clear();
  for (NodeId id = 0; id < n; ++id) {
    if (done[id] || late[id]) continue;
    BRRR_CHECK(waiting[id] == 0, "schedule: %{} waits for a later node", id);
    emit(id);
    emit_all_that_free();
  }
  for (NodeId id = 0; id < n; ++id)
    if (!done[id]) order.push_back(id);

  Rewriter rewriter(g);
  size_t moved = 0;
  for (size_t i = 0; i < n; ++i) {
    moved += order[i] != i;
    rewriter.copy(order[i]);
  }
  if (notes && moved) notes->push_back(fmt::format("{} nodes moved", moved));
  return rewriter.finish();
}

}  // namespace brrr
