#include "passes/memory/memory_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/integers.h"
#include "passes/memory/placement.h"

namespace brrr {
namespace {

constexpr int32_t kBeforeRun = -1;

int64_t slot_bytes(int64_t bytes, int64_t alignment) {
  return round_up(std::max<int64_t>(bytes, 1), alignment);
}

class Planner {
 public:
  Planner(const Graph& graph, const PlanOptions& options) : g_(graph), options_(options) {}

  MemoryPlan run() {
    end_ = static_cast<int32_t>(g_.size());
    find_constants();
    find_last_uses();
    plan_.buffer_of.resize(g_.size());
    plan_.offset_in.resize(g_.size());
    plan_.scratch_of.assign(g_.size(), -1);
    // A value may be made in the place of a state that stands behind it in the graph.
    for (NodeId id = 0; id < g_.size(); ++id)
      if (is_state(id)) place(id);
    for (NodeId id = 0; id < g_.size(); ++id)
      if (!is_state(id)) place(id);
    finish_states();
    for (const Output& o : g_.outputs())
      BRRR_CHECK(o.updates != kNoNode || !is_old_state(o.value),
                 "output '{}' is the old value of '{}', which changes in the same run", o.name,
                 plan_.buffers[plan_.buffer(o.value)].label);
    assign_offsets(MemoryRegion::constant);
    assign_offsets(MemoryRegion::temporary);
    measure_peak();
    return std::move(plan_);
  }

 private:
  void find_constants() {
    plan_.constant.resize(g_.size());
    for (NodeId id = 0; id < g_.size(); ++id) {
      bool constant = !g_.is_input(id);
      for (const ValueId& v : g_.node(id).operands) constant = constant && plan_.constant[v.node];
      plan_.constant[id] = constant;
    }
  }

  // The last step that reads a value, itself included; views are chased when buffers merge.
  void find_last_uses() {
    last_use_.resize(g_.size());
    update_of_.resize(g_.size());
    for (NodeId id = 0; id < g_.size(); ++id)
      last_use_[id].assign(g_.node(id).results.size(), static_cast<int32_t>(id));
    for (NodeId id = 0; id < g_.size(); ++id)
      for (const ValueId& v : g_.node(id).operands)
        last_use_[v.node][v.port] = std::max(last_use_[v.node][v.port], static_cast<int32_t>(id));
    // A next value that is copied into its state after the run must last until then, too.
    for (const Output& o : g_.outputs()) {
      last_use_[o.value.node][o.value.port] = end_;
      if (o.updates == kNoNode) continue;
      update_of_[o.updates] = o.value;
      takers_.emplace_back(o.value, o.updates);
    }
    std::stable_sort(takers_.begin(), takers_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    // A view's readers are readers of what it views.
    for (NodeId id = end_node(); id-- > 0;)
      if (view_offset(g_, g_.node(id))) {
        const ValueId v = g_.node(id).operands[0];
        last_use_[v.node][v.port] = std::max(last_use_[v.node][v.port], last_use_[id][0]);
      }
  }
  bool is_state(NodeId id) const { return g_.is_input(id) && g_.input_kind(id) != InputKind::data; }
  NodeId end_node() const { return static_cast<NodeId>(g_.size()); }

  uint32_t add_buffer(MemoryRegion region, int64_t bytes, int32_t first, int32_t last,
                      std::string label) {
    Buffer b;
    b.region = region;
    b.bytes = slot_bytes(bytes, options_.alignment);
    b.first = first;
    b.last = last;
    b.label = std::move(label);
    plan_.buffers.push_back(std::move(b));
    return static_cast<uint32_t>(plan_.buffers.size() - 1);
  }

  void extend(uint32_t buffer, int32_t step) {
    plan_.buffers[buffer].last = std::max(plan_.buffers[buffer].last, step);
  }

  std::string label(NodeId id) const {
    if (g_.is_input(id)) return g_.input_name(id);
    const std::string& scope = g_.scope_of(id);
    return scope.empty() ? g_.node(id).op->name : scope + "/" + g_.node(id).op->name;
  }

  void place(NodeId id) {
    const Node& node = g_.node(id);
    const int32_t step = static_cast<int32_t>(id);
    auto& buffers = plan_.buffer_of[id];
    auto& offsets = plan_.offset_in[id];
    buffers.assign(node.results.size(), ~0u);
    offsets.assign(node.results.size(), 0);
    if (g_.is_input(id)) {
      const bool data = g_.input_kind(id) == InputKind::data;
      buffers[0] = add_buffer(data ? MemoryRegion::temporary : MemoryRegion::state,
                              g_.type({id, 0}).bytes(), kBeforeRun, last_use_[id][0], label(id));
      if (!data) plan_.buffers[buffers[0]].state = id;
      return;
    }
    const MemoryRegion region =
        plan_.constant[id] ? MemoryRegion::constant : MemoryRegion::temporary;
    if (const auto offset = view_offset(g_, node)) {
      const ValueId whole = node.operands[0];
      buffers[0] = plan_.buffer(whole);
      offsets[0] = plan_.offset_in[whole.node][whole.port] + *offset;
      extend(buffers[0], last_use_[id][0]);
      return;
    }
    const int64_t scratch = options_.scratch_bytes(id);
    if (scratch > 0) {
      // Constants are computed before the first step, when the data inputs are already in place.
      const int32_t when = plan_.constant[id] ? kBeforeRun : step;
      plan_.scratch_of[id] = static_cast<int32_t>(
          add_buffer(MemoryRegion::temporary, scratch, when, when, label(id) + " scratch"));
    }
    if (options_.reuse && region == MemoryRegion::temporary && options_.in_place(id)) {
      const std::vector<OpDef::InPlace> pairs = node.op->in_place_pairs(node);
      if (!pairs.empty()) find_read_buffers(node);
      for (const OpDef::InPlace& pair : pairs) {
        if (buffers[pair.result] != ~0u) continue;
        const ValueId over = node.operands[pair.operand];
        const uint32_t candidate = plan_.buffer(over);
        if (!may_overwrite(id, pair, candidate)) continue;
        buffers[pair.result] = candidate;
        offsets[pair.result] = plan_.offset_in[over.node][over.port];
        taken_by_[candidate] = id;
      }
    }
    for (uint32_t port = 0; port < node.results.size(); ++port) {
      if (buffers[port] == ~0u && options_.reuse && region == MemoryRegion::temporary)
        buffers[port] = unread_state({id, port});
      if (buffers[port] == ~0u)
        buffers[port] = add_buffer(region, node.results[port].bytes(),
                                   region == MemoryRegion::constant ? kBeforeRun : step,
                                   region == MemoryRegion::constant ? end_ : step, label(id));
      extend(buffers[port], last_use_[id][port]);
    }
    if (const NodeId until = options_.busy_until(id); until != id) {
      for (const ValueId& v : node.operands) extend(plan_.buffer(v), static_cast<int32_t>(until));
      for (const uint32_t buffer : buffers) extend(buffer, static_cast<int32_t>(until));
    }
  }

  /// The buffers that a node reads, one for each operand, sorted.
  void find_read_buffers(const Node& node) {
    read_.clear();
    for (const ValueId& v : node.operands) read_.push_back(plan_.buffer(v));
    std::sort(read_.begin(), read_.end());
    taken_by_.resize(plan_.buffers.size(), kNoNode);
  }

  /// The states that take a value when the run is over.
  using Takers = std::vector<std::pair<ValueId, NodeId>>;
  std::pair<Takers::const_iterator, Takers::const_iterator> states_taking(ValueId v) const {
    return std::equal_range(takers_.begin(), takers_.end(), std::pair(v, NodeId{0}),
                            [](const auto& a, const auto& b) { return a.first < b.first; });
  }

  // The buffer of a state that takes this value and whose old value nobody reads any more: the
  // value is made in its place. Else none.
  uint32_t unread_state(ValueId v) const {
    const auto [begin, end] = states_taking(v);
    for (auto at = begin; at != end; ++at) {
      const NodeId state = at->second;
      const bool is_unread = last_use_[state][0] == static_cast<int32_t>(state);
      if (is_unread || last_use_[state][0] < static_cast<int32_t>(v.node))
        return plan_.buffer({state, 0});
    }
    return ~0u;
  }

  bool may_overwrite(NodeId id, OpDef::InPlace pair, uint32_t candidate) const {
    const Node& node = g_.node(id);
    const Buffer& b = plan_.buffers[candidate];
    const Type& from = g_.type(node.operands[pair.operand]);
    const Type& to = node.results[pair.result];
    if (from.shape != to.shape || bytes_of(from.dtype) != bytes_of(to.dtype)) return false;
    if (b.last > static_cast<int32_t>(id)) return false;  // read later
    const auto [reader, end] = std::equal_range(read_.begin(), read_.end(), candidate);
    if (end - reader > 1 || taken_by_[candidate] == id) return false;
    if (b.region == MemoryRegion::temporary) return !is_data_input(candidate);
    // State is overwritten only by its own next value.
    if (b.region != MemoryRegion::state) return false;
    const auto [first, last] = states_taking({id, pair.result});
    return std::any_of(first, last, [&](const auto& taking) { return taking.second == b.state; });
  }

  bool is_data_input(uint32_t buffer) const {
    const Buffer& b = plan_.buffers[buffer];
    return b.region == MemoryRegion::temporary && b.first == kBeforeRun;
  }

  // Updates that did not happen in place are copied when the run is over.
  void finish_states() {
    for (const Output& o : g_.outputs()) {
      if (o.updates == kNoNode) continue;
      const uint32_t from = plan_.buffer(o.value), to = plan_.buffer({o.updates, 0});
      if (from == to) continue;
      BRRR_CHECK(!is_old_state(o.value),
                 "'{}' takes the old value of '{}', which changes in the same run",
                 g_.input_name(o.updates), plan_.buffers[from].label);
      plan_.copies.push_back({o.value, o.updates});
    }
  }

  // Whether the value stands in the buffer of a state that gets another value by copy: after the
  // copy it would be gone. save_old_states() leaves no such outputs.
  bool is_old_state(ValueId v) const {
    const uint32_t buffer = plan_.buffer(v);
    const NodeId state = plan_.buffers[buffer].state;
    if (state == kNoNode || !update_of_[state]) return false;
    return plan_.buffer(*update_of_[state]) != buffer;
  }

  // In the order of first use, and largest first; the better of the two. The latter takes quadratic
  // time and is a few parts in a thousand better for a deep network, which does without.
  void assign_offsets(MemoryRegion region) {
    constexpr size_t kMany = 1 << 14;
    std::vector<uint32_t> ids;
    for (uint32_t i = 0; i < plan_.buffers.size(); ++i)
      if (plan_.buffers[i].region == region) ids.push_back(i);
    int64_t& total =
        region == MemoryRegion::constant ? plan_.constant_bytes : plan_.temporary_bytes;
    if (!options_.reuse) {
      for (uint32_t i : ids) {
        plan_.buffers[i].offset = total;
        total += plan_.buffers[i].bytes;
      }
      return;
    }
    const auto& b = plan_.buffers;
    std::vector<uint32_t> by_size = ids, by_time = ids;
    std::stable_sort(by_size.begin(), by_size.end(),
                     [&](uint32_t x, uint32_t y) { return b[x].bytes > b[y].bytes; });
    std::stable_sort(by_time.begin(), by_time.end(),
                     [&](uint32_t x, uint32_t y) { return b[x].first < b[y].first; });
    Placement placement = place_over_time(lifetimes(by_time));
    if (ids.size() <= kMany)
      if (Placement other = place_in_order(lifetimes(by_size)); other.bytes <= placement.bytes) {
        placement = std::move(other);
        by_time.swap(by_size);
      }
    total = placement.bytes;
    for (size_t i = 0; i < by_time.size(); ++i)
      plan_.buffers[by_time[i]].offset = placement.offsets[i];
  }

  std::vector<Lifetime> lifetimes(const std::vector<uint32_t>& order) const {
    std::vector<Lifetime> list;
    list.reserve(order.size());
    for (const uint32_t i : order) {
      const Buffer& b = plan_.buffers[i];
      list.push_back({b.bytes, b.first, b.last});
    }
    return list;
  }

  void measure_peak() {
    std::vector<int64_t> change(static_cast<size_t>(end_) + 3, 0);
    for (const Buffer& b : plan_.buffers) {
      if (b.region != MemoryRegion::temporary) continue;
      change[static_cast<size_t>(b.first + 1)] += b.bytes;
      change[static_cast<size_t>(b.last + 2)] -= b.bytes;
    }
    int64_t live = 0;
    for (size_t i = 0; i < change.size(); ++i) {
      live += change[i];
      if (live > plan_.peak_live_bytes) {
        plan_.peak_live_bytes = live;
        plan_.peak_step = static_cast<int32_t>(i) - 1;
      }
    }
  }

  const Graph& g_;
  const PlanOptions& options_;
  MemoryPlan plan_;
  std::vector<std::vector<int32_t>> last_use_;
  std::vector<std::optional<ValueId>> update_of_;  // [input]
  Takers takers_;                                  // sorted by value
  std::vector<uint32_t> read_;                     // of the node that is placed now
  std::vector<NodeId> taken_by_;                   // [buffer]: the last node that overwrites it
  int32_t end_ = 0;
};

}  // namespace

MemoryPlan memory_plan(const Graph& graph, const PlanOptions& options) {
  return Planner(graph, options).run();
}

void verify(const MemoryPlan& plan) {
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& a = plan.buffers[i];
    if (a.region == MemoryRegion::state) continue;
    const int64_t size =
        a.region == MemoryRegion::constant ? plan.constant_bytes : plan.temporary_bytes;
    BRRR_CHECK(a.offset >= 0 && a.offset + a.bytes <= size, "'{}' lies outside its region",
               a.label);
    for (size_t j = i + 1; j < plan.buffers.size(); ++j) {
      const Buffer& b = plan.buffers[j];
      if (a.region != b.region || a.last < b.first || b.last < a.first) continue;
      BRRR_CHECK(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset,
                 "'{}' and '{}' overlap in memory and in time", a.label, b.label);
    }
  }
}

}  // namespace brrr
