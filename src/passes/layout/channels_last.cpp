#include "passes/layout/channels_last.h"

#include <map>
#include <optional>
#include <utility>

#include "base/human.h"
#include "ops/fused.h"
#include "ops/ops.h"
#include "ops/spatial/conv.h"
#include "ops/spatial/windows.h"
#include "passes/weights/made_of_parameters.h"

namespace brrr {
namespace {

constexpr int kRank = 4;
/// The axis of [N, H, W, C] that holds axis i of [N, C, H, W].
constexpr int64_t kPlace[kRank] = {0, 3, 1, 2};

bool are_pictures(const Shape& x) {
  return x.rank() == kRank && !x[1].is_symbol() && !x[2].is_symbol() && !x[3].is_symbol();
}

/// [N, C, H, W] -> [N, H, W, C], without moving anything where that is possible.
Value to_last(Value x) {
  const Shape& s = x.shape();
  if (s.size(1) == 1 || s.size(2) * s.size(3) == 1) return reshape(x, {s[0], s[2], s[3], s[1]});
  return transpose(x, {0, 2, 3, 1});
}
Value to_first(Value x) {
  const Shape& s = x.shape();
  if (s.size(3) == 1 || s.size(1) * s.size(2) == 1) return reshape(x, {s[0], s[3], s[1], s[2]});
  return transpose(x, {0, 3, 1, 2});
}

/// Returns whether dense convolutions with windows of several elements do at least a quarter of the
/// multiply-adds of all convolutions.
bool windows_dominate(const Graph& graph) {
  int64_t windows = 0, all = 0;
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (!is(node, Op::conv, Op::conv_transpose)) continue;
    // Each element of the side that the weight's first axis belongs to takes part in one
    // multiply-add for each element of that slice of the weight.
    const Shape& weight = graph.type(node.operands[1]).shape;
    const Shape& side =
        is(node, Op::conv) ? node.results[0].shape : graph.type(node.operands[0]).shape;
    if (!are_pictures(side)) continue;
    const int64_t kernel = weight.size(2) * weight.size(3);
    const int64_t multiply_adds =
        side.size(1) * side.size(2) * side.size(3) * weight.size(1) * kernel;
    const bool is_depthwise = weight.size(1) == 1 && node.attrs.get<int64_t>("groups") > 1;
    all += multiply_adds;
    if (kernel > 1 && !is_depthwise) windows += multiply_adds;
  }
  return 4 * windows >= all;
}

class LayoutChanger {
 public:
  LayoutChanger(const Graph& in, const Target& target)
      : in_(in), target_(target), uses_(count_uses(in)) {}

  Graph run(Notes* notes) {
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) { return change(r, id); });
    if (convolutions_ == 0) return in_;
    if (notes)
      notes->push_back(fmt::format("{} with channels last, {} converted at the borders",
                                   counted(convolutions_, "convolution"),
                                   counted(borders_, "value")));
    return drop_dead(std::move(out));
  }

 private:
  bool has_twin(ValueId old) const { return twins_.contains(old); }

  /// The value with channels last.
  Value twin(Rewriter& r, ValueId old) {
    const auto at = twins_.find(old);
    if (at != twins_.end()) return at->second;
    ++borders_;
    return twins_[old] = to_last(r.map(old));
  }

  /// `value`, with channels last, stands for an old one.
  void put(Rewriter& r, ValueId old, Value value) {
    twins_[old] = value;
    r.bind(old, to_first(value));
  }

  bool change(Rewriter& r, NodeId id) {
    const Node& node = in_.node(id);
    if (in_.is_input(id) || node.operands.empty()) return false;
    const bool is_conv = is(node, Op::conv, Op::conv_transpose);
    if (is_conv || is(node, Op::max_pool, Op::sum_pool)) return change_windows(r, id, is_conv);
    if (!are_pictures(node.results[0].shape) && !is(node, Op::sum, Op::max, Op::min, Op::product))
      return false;
    bool any = false;
    for (const ValueId& v : node.operands) any = any || has_twin(v);
    if (!any) return false;
    r.enter_scope_of(id);
    // Random bits belong to places of the old layout, and their key has no layout.
    if (node.op->draws_random) return false;
    if (is_pointwise(*node.op)) return change_pointwise(r, id);
    if (is(node, Op::batch_norm)) return change_batch_norm(r, id);
    if (is(node, Op::sum, Op::max, Op::min, Op::product)) return change_reduction(r, id);
    if (is(node, Op::concat, Op::pad, Op::slice) ||
        (is(node, Op::gather) && in_.type(node.operands[1]).shape.rank() == 1))
      return change_axis(r, id);
    return false;
  }

  bool change_windows(Rewriter& r, NodeId id, bool is_conv) {
    const Node& node = in_.node(id);
    if (!are_pictures(in_.type(node.operands[0]).shape) || ops::has_channels_last(node.attrs) ||
        !is_float(node.results[0].dtype))
      return false;
    // A pool by itself gains nothing.
    if (!is_conv && !has_twin(node.operands[0])) return false;
    if (node.results.size() > 1 && uses_[id][1] > 0) return false;
    r.enter_scope_of(id);
    const bool was_there = has_twin(node.operands[0]);
    const Value x = twin(r, node.operands[0]);
    std::vector<ValueId> operands{x.id};
    for (size_t i = 1; i < node.operands.size(); ++i)
      operands.push_back(r.map(node.operands[i]).id);
    Attrs attrs = node.attrs;
    attrs.set("channels_last", true);
    const NodeId made = r.out().add(*node.op, operands, std::move(attrs));
    if (!target_.runs(r.out(), made)) {
      if (!was_there) {
        twins_.erase(node.operands[0]);
        --borders_;
      }
      return false;
    }
    put(r, {id, 0}, r.out().value(made));
    // Nobody reads the indices of a pool.
    if (node.results.size() > 1) r.bind({id, 1}, to_first(r.out().value(made, 1)));
    convolutions_ += is_conv;
    return true;
  }

  bool change_pointwise(Rewriter& r, NodeId id) {
    const Node& node = in_.node(id);
    const Shape& shape = node.results[0].shape;
    std::vector<Value> operands;
    for (const ValueId& v : node.operands) {
      const Shape& s = in_.type(v).shape;
      if (s.rank() == 0) {
        operands.push_back(r.map(v));
      } else if (s == shape || has_twin(v)) {
        operands.push_back(twin(r, v));
      } else {
        Shape whole = s;
        while (whole.rank() < kRank) whole.insert(0, Dim(1));
        if (!are_pictures(whole)) return false;
        operands.push_back(to_last(reshape(r.map(v), whole)));
      }
    }
    put(r, {id, 0}, call(*node.op, operands, node.attrs)[0]);
    return true;
  }

  bool change_batch_norm(Rewriter& r, NodeId id) {
    const Node& node = in_.node(id);
    if (!has_twin(node.operands[0])) return false;
    std::vector<Value> operands{twin(r, node.operands[0])};
    for (size_t i = 1; i < node.operands.size(); ++i) operands.push_back(r.map(node.operands[i]));
    Attrs attrs = node.attrs;
    attrs.set("channels_last", true);
    const std::vector<Value> results = call(*node.op, operands, std::move(attrs));
    put(r, {id, 0}, results[0]);
    for (uint32_t port = 1; port < results.size(); ++port) r.bind({id, port}, results[port]);
    return true;
  }

  bool change_reduction(Rewriter& r, NodeId id) {
    const Node& node = in_.node(id);
    if (!are_pictures(in_.type(node.operands[0]).shape)) return false;
    const auto& axes = node.attrs.get<std::vector<int64_t>>("axes");
    const bool keeps = node.attrs.get<bool>("keep");
    // What remains of the axes must be in the same order.
    const auto reduces = [&](int64_t axis) { return std::ranges::find(axes, axis) != axes.end(); };
    if (!keeps && !reduces(1) && !(reduces(2) && reduces(3))) return false;
    std::vector<int64_t> moved;
    for (const int64_t axis : axes) moved.push_back(kPlace[axis]);
    std::ranges::sort(moved);
    Attrs attrs = node.attrs;
    attrs.set("axes", moved);
    const Value y = call(*node.op, std::vector{twin(r, node.operands[0])}, std::move(attrs))[0];
    if (keeps)
      put(r, {id, 0}, y);
    else
      r.bind({id, 0}, y);
    return true;
  }

  bool change_axis(Rewriter& r, NodeId id) {
    const Node& node = in_.node(id);
    std::vector<Value> operands;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const bool is_ids = is(node, Op::gather) && i == 1;
      if (!is_ids && !are_pictures(in_.type(node.operands[i]).shape)) return false;
      operands.push_back(is_ids ? r.map(node.operands[i]) : twin(r, node.operands[i]));
    }
    Attrs attrs = node.attrs;
    attrs.set("axis", kPlace[attrs.get<int64_t>("axis")]);
    put(r, {id, 0}, call(*node.op, operands, std::move(attrs))[0]);
    return true;
  }

  const Graph& in_;
  const Target& target_;
  std::vector<std::vector<uint32_t>> uses_;
  std::map<ValueId, Value> twins_;
  size_t convolutions_ = 0, borders_ = 0;
};

}  // namespace

Graph channels_last(const Graph& graph, const Target& target, LayoutChoice choice, Notes* notes) {
  if (choice == LayoutChoice::by_windows && !windows_dominate(graph)) return graph;
  return LayoutChanger(graph, target).run(notes);
}

WindowWeights store_window_weights(const Graph& graph, const Target& target,
                                   const FormOfWindows& form_of) {
  const std::vector<bool> is_made = made_of_parameters(graph);
  std::map<std::pair<ValueId, int64_t>, Value> stored;
  WindowWeights result;
  Graph out = rewrite(graph, [&](Rewriter& r, NodeId id) {
    const Node& node = graph.node(id);
    if (graph.is_input(id) || !is(node, Op::conv) || !ops::has_channels_last(node.attrs) ||
        node.attrs.find("kernel") != nullptr || !is_made[node.operands[1].node])
      return false;
    const std::optional<WindowForm> form = form_of(id);
    if (!form) return false;
    r.enter_scope_of(id);
    const std::vector<Value> operands = r.operands(id);
    const auto [at, fresh] = stored.try_emplace({node.operands[1], form->winograd});
    if (fresh)
      at->second = store(form->winograd != 0 ? winograd_weight(operands[1], form->winograd)
                                             : weight_matrix(operands[1]),
                         form->storage);
    std::optional<Value> bias;
    if (operands.size() > 2) bias = operands[2];
    const Value y = conv_by_matrix(operands[0], at->second, ops::spatial_sizes(operands[1].shape()),
                                   bias, ops::windows_of(node.attrs),
                                   node.attrs.get<int64_t>("groups"), form->winograd);
    if (!target.runs(r.out(), y.id.node)) return false;
    r.bind({id, 0}, y);
    ++result.convolutions;
    if (fresh) result.elements += operands[1].shape().elements();
    return true;
  });
  result.graph = result.convolutions == 0 ? graph : drop_dead(std::move(out));
  return result;
}

Graph window_panels(const Graph& graph, const Target& target, Notes* notes) {
  WindowWeights result = store_window_weights(
      graph, target, [](NodeId) { return WindowForm{{Layout::transposed_panels}}; });
  if (notes && result.convolutions > 0)
    notes->push_back(
        fmt::format("weights of {} in panels", counted(result.convolutions, "convolution")));
  return std::move(result.graph);
}

}  // namespace brrr
