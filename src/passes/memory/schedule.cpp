// List scheduling for memory: the order of independent nodes decides how many bytes live at once.
// Backward nodes that produce parameter gradients are taken as soon as their operands exist, so
// that the activations they read die early; constants and other leaves wait until their first
// reader. Collectives keep their order, because ranks may run programs of other shapes at a time,
// whose bytes would put them into another one.

#include <algorithm>

#include "ir/op_def.h"
#include "ops/ranks/collectives.h"
#include "passes/passes.h"

namespace brrr {
namespace {

// Bytes that are freed minus bytes that are taken when the node runs next.
int64_t gain(const Graph& g, NodeId id, const std::vector<std::vector<uint32_t>>& uses_left) {
  int64_t bytes = 0;
  const Node& node = g.node(id);
  if (!view_offset(g, node))
    for (const Type& t : node.results) bytes -= t.bytes();
  std::vector<ValueId> read = node.operands;
  std::sort(read.begin(), read.end());
  for (auto at = read.begin(); at != read.end();) {
    const ValueId v = *at;
    const auto next = std::upper_bound(at, read.end(), v);
    if (!g.is_input(v.node) && uses_left[v.node][v.port] == static_cast<uint32_t>(next - at))
      bytes += g.type(v).bytes();
    at = next;
  }
  return bytes;
}

// How often one node reads one value, at most.
uint32_t most_reads(const Graph& g) {
  uint32_t most = 1;
  std::vector<ValueId> read;
  for (const Node& node : g.nodes()) {
    read = node.operands;
    std::sort(read.begin(), read.end());
    uint32_t count = 0;
    for (size_t i = 0; i < read.size(); ++i) {
      count = i > 0 && read[i] == read[i - 1] ? count + 1 : 1;
      most = std::max(most, count);
    }
  }
  return most;
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
  // What many nodes read (a mask, the angles of rotary embeddings) would be looked through again
  // for each of them. A node's gain depends on it only where the node may be the last reader; but
  // those that could run from the start wait to be looked at once.
  constexpr size_t kMany = 16;
  const uint32_t few_uses = most_reads(g);
  std::vector<std::vector<NodeId>> ready_readers(n);
  auto look_at_readers = [&](ValueId v) {
    const std::vector<NodeId>& readers = users[v.node];
    if (readers.size() <= kMany || (!g.is_input(v.node) && uses_left[v.node][v.port] <= few_uses)) {
      candidates.insert(candidates.end(), readers.begin(), readers.end());
      return;
    }
    std::vector<NodeId>& ready = ready_readers[v.node];
    candidates.insert(candidates.end(), ready.begin(), ready.end());
    ready.clear();
  };
  std::vector<NodeId> collectives;
  size_t next_collective = 0;
  for (NodeId id = 0; id < n; ++id)
    if (!g.is_input(id) && is_collective(g.node(id))) collectives.push_back(id);
  const auto has_its_turn = [&](NodeId id) {
    return g.is_input(id) || !is_collective(g.node(id)) || collectives[next_collective] == id;
  };
  auto emit = [&](NodeId id) {
    if (next_collective < collectives.size() && collectives[next_collective] == id &&
        ++next_collective < collectives.size())
      candidates.push_back(collectives[next_collective]);
    for (const ValueId& v : g.node(id).operands)
      if (late[v.node] && !done[v.node]) {
        done[v.node] = true;
        order.push_back(v.node);
      }
    done[id] = true;
    order.push_back(id);
    for (const ValueId& v : g.node(id).operands) --uses_left[v.node][v.port];
    // Newly ready nodes, and the other readers of the operands: one may now be the last.
    for (const ValueId& v : g.node(id).operands) look_at_readers(v);
    for (NodeId user : users[id]) {
      --waiting[user];
      candidates.push_back(user);
    }
  };
  auto emit_all_that_free = [&] {
    while (!candidates.empty()) {
      const NodeId id = candidates.back();
      candidates.pop_back();
      if (!done[id] && waiting[id] == 0 && has_its_turn(id) && gain(g, id, uses_left) >= 0)
        emit(id);
    }
  };
  for (NodeId id = 0; id < n; ++id)
    if (late[id])
      for (NodeId user : users[id]) --waiting[user];
  // Inputs are there before anything runs: no node waits because its state stands far below.
  for (NodeId id = 0; id < n; ++id)
    if (g.is_input(id)) emit(id);
  candidates.clear();
  for (NodeId id = 0; id < n; ++id)
    if (users[id].size() > kMany)
      for (NodeId user : users[id])
        if (waiting[user] == 0) ready_readers[id].push_back(user);
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
