#include <algorithm>
#include <map>

#include "ops/ops.h"
#include "ops/spatial/windows.h"
#include "passes/passes.h"

namespace brrr {
namespace {

class ChannelFolder {
 public:
  explicit ChannelFolder(const Graph& in) : in_(in), uses_(count_uses(in)) {
    for (NodeId id = 0; id < in.size(); ++id) fixed_.push_back(is_fixed(id));
  }

  Graph run(Notes* notes) {
    size_t folded = 0;
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      const bool folds = fold(r, id);
      folded += folds;
      return folds;
    });
    if (folded == 0) return in_;
    if (notes) notes->push_back(fmt::format("{} went into the weights of convolutions", folded));
    return drop_dead(std::move(out));
  }

 private:
  /// Whether it depends on parameters and constants alone.
  bool is_fixed(NodeId id) const {
    if (in_.is_input(id)) return in_.role(id) == Role::parameter;
    const Node& node = in_.node(id);
    if (node.op->draws_random || node.op->runs_regions) return false;
    return std::ranges::all_of(node.operands, [&](const ValueId& v) { return fixed_[v.node]; });
  }

  /// The convolution that a value is, with what was folded into it, if its weights are fixed.
  std::optional<NodeId> conv_of(ValueId v) const {
    if (const auto at = conv_of_.find(v.node); at != conv_of_.end()) return at->second;
    const Node& node = in_.node(v.node);
    if (in_.is_input(v.node) || !is(node, Op::conv) || !is_float(node.results[0].dtype))
      return std::nullopt;
    for (size_t i = 1; i < node.operands.size(); ++i)
      if (!fixed_[node.operands[i].node]) return std::nullopt;
    return v.node;
  }

  /// Whether s broadcasts to y as one number for each channel, or one for all.
  static bool is_per_channel(const Type& s, const Type& y) {
    if (s.dtype != y.dtype || s.shape.rank() > y.shape.rank()) return false;
    if (s.shape.elements() == 1) return true;
    for (int behind = 1; behind <= s.shape.rank(); ++behind)
      if (s.shape.size(-behind) != 1 && behind != y.shape.rank() - 1) return false;
    return s.shape.rank() >= y.shape.rank() - 1 && s.shape.elements() == y.shape.size(1);
  }

  bool fold(Rewriter& r, NodeId id) {
    const Node& node = in_.node(id);
    if (in_.is_input(id) || (!is(node, Op::mul, Op::add))) return false;
    for (const size_t k : {0, 1}) {
      const ValueId image = node.operands[k], number = node.operands[1 - k];
      const auto conv = conv_of(image);
      if (!conv || !fixed_[number.node] || uses_[image.node][image.port] != 1 ||
          !is_per_channel(in_.type(number), in_.type(image)) || in_.type(image) != node.results[0])
        continue;
      if (in_.node(*conv).operands.size() > 2 &&
          in_.type(in_.node(*conv).operands[2]).dtype != in_.type(number).dtype)
        continue;
      r.enter_scope_of(*conv);
      r.bind({id, 0}, folded(r, r.map(image), r.map(number), is(node, Op::mul)));
      conv_of_[id] = *conv;
      return true;
    }
    return false;
  }

  static Value folded(Rewriter& r, Value y, Value number, bool multiplies) {
    const Node conv = r.out().node(y.id.node);
    const Value x = r.out().value(conv.operands[0]);
    Value w = r.out().value(conv.operands[1]);
    const Dim m = w.shape()[0];
    const Value by_channel = number.shape().elements() == 1 && m.size() != 1
                                 ? broadcast_to(reshape(number, {1}), {m})
                                 : reshape(number, {m});
    std::optional<Value> bias;
    if (conv.operands.size() > 2) bias = r.out().value(conv.operands[2]);
    if (multiplies) {
      Shape column{m};
      for (int axis = 1; axis < w.shape().rank(); ++axis) column.push_back(Dim(1));
      w = w * reshape(by_channel, column);
      if (bias) bias = *bias * by_channel;
    } else {
      bias = bias ? *bias + by_channel : by_channel;
    }
    const Windows windows = ops::windows_of(conv.attrs);
    return brrr::conv(x, w, bias, windows, conv.attrs.get<int64_t>("groups"));
  }

  const Graph& in_;
  std::vector<std::vector<uint32_t>> uses_;
  std::vector<bool> fixed_;
  std::map<NodeId, NodeId> conv_of_;  // products and sums that became part of a convolution
};

}  // namespace

Graph fold_channels(const Graph& graph, Notes* notes) { return ChannelFolder(graph).run(notes); }

}  // namespace brrr
