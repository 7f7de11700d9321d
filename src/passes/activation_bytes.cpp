// How many bytes forward values hold: of a choice before it is made, and of a graph as it stands.

#include <algorithm>

#include "passes/recomputation.h"
#include "passes/rematerialize.h"

namespace brrr {
namespace {

constexpr ValueId kNone{kNoNode, 0};

/// Bytes that come and go with the steps.
class Sweep {
 public:
  explicit Sweep(size_t steps) : change_(steps + 2) {}
  void add(int64_t bytes, size_t first, size_t last, bool handed_over) {
    change_[first] += bytes;
    change_[handed_over ? last : last + 1] -= bytes;
  }
  int64_t peak() const {
    int64_t live = 0, most = 0;
    for (int64_t c : change_) most = std::max(most, live += c);
    return most;
  }

 private:
  std::vector<int64_t> change_;
};

}  // namespace

int64_t Recomputation::aligned(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + 63) / 64 * 64;
}

int64_t Recomputation::peak_bytes(const Choice& again) const {
  const std::vector<Step> steps = order(again);
  const auto end = static_cast<uint32_t>(steps.size());
  constexpr uint32_t kNever = ~0u;
  // Of originals and of copies: whether a node runs at all, the last step that reads a value, and
  // whether that step takes over its bytes.
  struct Life {
    std::vector<uint8_t> needed, handed_over;
    std::vector<uint32_t> last;
  } lives[2];
  for (Life& life : lives) {
    life.needed.assign(graph_.size(), 0);
    life.handed_over.assign(bytes_.size(), 0);
    life.last.assign(bytes_.size(), kNever);
  }
  for (const Output& o : graph_.outputs()) {
    const ValueId from = root(o.value);
    lives[0].needed[o.value.node] = lives[0].needed[from.node] = 1;
    lives[0].last[first_value_[from.node] + from.port] = end;
  }
  for (uint32_t i = end; i-- > 0;) {
    const Step& step = steps[i];
    if (!lives[step.copy].needed[step.node]) continue;
    for (uint32_t k = first_flow_[step.node]; k < first_flow_[step.node + 1]; ++k) {
      const Flow& flow = flows_[k];
      Life& life = lives[is_copy(step, flow.root, again)];
      life.needed[flow.node] = life.needed[flow.root] = 1;
      if (life.last[flow.value] != kNever) continue;
      life.last[flow.value] = i;
      life.handed_over[flow.value] = flow.overwritten;
    }
  }
  Sweep sweep(steps.size());
  for (uint32_t i = 0; i < end; ++i) {
    const Step& step = steps[i];
    const Life& life = lives[step.copy];
    if (!is_forward(step.node) || !life.needed[step.node]) continue;
    for (uint32_t v = first_value_[step.node];
         v < first_value_[step.node] + graph_.node(step.node).results.size(); ++v)
      sweep.add(bytes_[v], i, life.last[v] == kNever ? i : life.last[v], life.handed_over[v]);
  }
  return sweep.peak();
}

int64_t activation_bytes(const Graph& graph) {
  // In a graph that has copies, these count as the originals do.
  std::vector<bool> counts(graph.size()), backward(graph.size()), constant(graph.size());
  std::vector<ValueId> root(graph.size(), kNone);
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    const std::string& scope = graph.scope_of(id);
    constant[id] = !graph.is_input(id);
    const bool copy = scope.starts_with(kRecomputeScope);
    backward[id] = scope.starts_with(kBackwardScope);
    for (const ValueId& v : node.operands) {
      constant[id] = constant[id] && constant[v.node];
      backward[id] = backward[id] || backward[v.node];
    }
    if (copy) backward[id] = false;
    const bool view = view_offset(graph, node).has_value();
    counts[id] = !graph.is_input(id) && !constant[id] && !backward[id] && !view;
    if (view) {
      const ValueId v = node.operands[0];
      root[id] = root[v.node].node == kNoNode ? v : root[v.node];
    }
  }
  auto root_of = [&](ValueId v) { return root[v.node].node == kNoNode ? v : root[v.node]; };
  std::vector<std::vector<size_t>> last(graph.size());
  std::vector<bool> handed(graph.size());
  for (NodeId id = 0; id < graph.size(); ++id) last[id].assign(graph.node(id).results.size(), id);
  auto read = [&](ValueId v, size_t at) {
    const ValueId from = root_of(v);
    last[from.node][from.port] = std::max(last[from.node][from.port], at);
  };
  for (NodeId id = 0; id < graph.size(); ++id)
    for (const ValueId& v : graph.node(id).operands) read(v, id);
  for (const Output& o : graph.outputs()) read(o.value, graph.size());
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (root[id].node != kNoNode || !counts[id]) continue;
    for (const OpDef::InPlace& pair : node.op->in_place_pairs(node)) {
      const ValueId v = node.operands[pair.operand];
      if (v.port == 0 && root[v.node].node == kNoNode && counts[v.node] && last[v.node][0] == id &&
          node.results[pair.result].bytes() == graph.type(v).bytes())
        handed[v.node] = true;
    }
  }
  Sweep sweep(graph.size());
  for (NodeId id = 0; id < graph.size(); ++id) {
    if (!counts[id]) continue;
    for (uint32_t port = 0; port < graph.node(id).results.size(); ++port)
      sweep.add(Recomputation::aligned(graph.type({id, port}).bytes()), id, last[id][port],
                port == 0 && handed[id]);
  }
  return sweep.peak();
}

}  // namespace brrr
