// How many bytes forward values hold: of a choice before it is made, and of a graph as it stands.

#include <algorithm>

#include "ops/fused.h"
#include "ops/op.h"
#include "passes/memory/recomputation.h"
#include "passes/memory/rematerialize.h"

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

namespace {

// Which results depend on a value of the backward pass. What `after` waits for does not count, so
// copies are forward values; of a fused node each result depends on what its own part reads.
std::vector<std::vector<bool>> backward_values(const Graph& graph) {
  std::vector<std::vector<bool>> backward(graph.size());
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    auto reads_backward = [&](size_t k) {
      const ValueId v = node.operands[k];
      return static_cast<bool>(backward[v.node][v.port]);
    };
    if (is(node, Op::fused)) {
      const Graph& body = fused_body(node);
      std::vector<bool> depends(body.size());
      size_t operand = 0;
      for (NodeId part = 0; part < body.size(); ++part) {
        if (body.is_input(part)) depends[part] = reads_backward(operand++);
        for (const ValueId& v : body.node(part).operands)
          depends[part] = depends[part] || depends[v.node];
      }
      for (const Output& o : body.outputs()) backward[id].push_back(depends[o.value.node]);
      continue;
    }
    bool any = graph.phase(id) == Phase::backward;
    const size_t operands = is(node, Op::after) ? 1 : node.operands.size();
    if (operands == 1 && node.op->view) any = false;  // a view is what it looks at
    for (size_t k = 0; k < operands; ++k) any = any || reads_backward(k);
    backward[id].assign(node.results.size(), any);
  }
  return backward;
}

}  // namespace

int64_t activation_bytes(const Graph& graph) {
  const auto backward = backward_values(graph);
  // Constant: until the parameters change.
  std::vector<bool> may_count(graph.size()), constant(graph.size());
  std::vector<ValueId> root(graph.size(), kNone);
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    constant[id] = !graph.is_input(id) || graph.input_kind(id) == InputKind::parameter;
    for (const ValueId& v : node.operands) constant[id] = constant[id] && constant[v.node];
    const bool view = view_offset(graph, node).has_value();
    may_count[id] = !graph.is_input(id) && !constant[id] && !view;
    if (view) {
      const ValueId v = node.operands[0];
      root[id] = root[v.node].node == kNoNode ? v : root[v.node];
    }
  }
  auto counts = [&](ValueId v) { return may_count[v.node] && !backward[v.node][v.port]; };
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
    if (!may_count[id]) continue;
    for (const OpDef::InPlace& pair : node.op->in_place_pairs(node)) {
      const ValueId v = node.operands[pair.operand];
      if (v.port == 0 && counts(v) && counts({id, pair.result}) && last[v.node][0] == id &&
          node.results[pair.result].bytes() == graph.type(v).bytes())
        handed[v.node] = true;
    }
  }
  Sweep sweep(graph.size());
  for (NodeId id = 0; id < graph.size(); ++id) {
    for (uint32_t port = 0; port < graph.node(id).results.size(); ++port)
      if (counts({id, port}))
        sweep.add(Recomputation::aligned(graph.type({id, port}).bytes()), id, last[id][port],
                  port == 0 && handed[id]);
  }
  return sweep.peak();
}

}  // namespace brrr
