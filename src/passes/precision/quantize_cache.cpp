#include "passes/precision/quantize_cache.h"

#include <map>

#include "base/human.h"
#include "ops/attention.h"
#include "ops/ops.h"
#include "ops/quantized/int8_rows.h"

namespace brrr {
namespace {

class CacheQuantizer {
 public:
  CacheQuantizer(const Graph& in, const Target& target) : in_(in), target_(target) {
    for (NodeId id = 0; id < in.size(); ++id) find_readers(id);
    for (const NodeId id : in.inputs(InputKind::state))
      if (in.role(id) == Role::cache && is_float(in.type({id, 0}).dtype))
        caches_[id] = head_width(id);
  }

  Graph run(Notes* notes) {
    Graph out = rewrite(
        in_,
        [&](Rewriter& r, NodeId id) {
          if (in_.is_input(id)) return replace_cache(r, id);
          if (const size_t part = part_of(id); part > 0) return append_integers(r, id, part);
          return false;
        },
        Types::change);
    check_kernels(out);
    if (notes && !caches_.empty())
      notes->push_back(fmt::format("{} of keys and values in int8 rows, a scale for each head",
                                   counted(std::ssize(caches_), "cache")));
    return out;
  }

 private:
  /// Records the width of the heads that an attention node reads of each of its sources.
  void find_readers(NodeId id) {
    const Node& node = in_.node(id);
    if (is(node, Op::attention)) {
      std::vector<Type> types;
      for (const ValueId v : node.operands) types.push_back(in_.type(v));
      const AttentionForm form(node, types);
      for (size_t i = 0; i < form.sources; ++i) {
        const auto parts = form.partition(i);
        if (parts && parts->size() == 1 && parts->front().which > 0)
          add_width(node.operands[i], parts->front().width);
        else
          add_width(node.operands[i], kNotRead);
      }
      for (size_t i = form.sources; i < node.operands.size(); ++i)
        add_width(node.operands[i], kNotRead);
      return;
    }
    const size_t part = part_of(id);
    for (size_t i = 0; i < node.operands.size(); ++i)
      if (part == 0 || i > 0) add_width(node.operands[i], kNotRead);
    if (part > 0) appends_[node.operands[0].node] = id;
  }
  void add_width(ValueId v, int64_t width) {
    const auto [at, is_new] = widths_.try_emplace(v, width);
    if (!is_new && at->second != width) at->second = kNotRead;
  }

  /// Returns the index of the operand that a node appends to the cache in operand 0, or 0 if the
  /// node appends to no cache.
  size_t part_of(NodeId id) const {
    const Node& node = in_.node(id);
    const size_t part = is(node, Op::update_slice) ? 1 : is(node, Op::update_rows) ? 2 : 0;
    if (part == 0 || !in_.is_input(node.operands[0].node)) return 0;
    return in_.role(node.operands[0].node) == Role::cache ? part : 0;
  }

  /// The width of the heads of a cache, which only one node may extend and only attention read.
  int64_t head_width(NodeId cache) const {
    const auto append = appends_.find(cache);
    const auto width = append == appends_.end() ? widths_.end() : widths_.find({append->second, 0});
    if (width == widths_.end() || width->second == kNotRead || widths_.contains({cache, 0}))
      user_error(
          "--kv-cache int8 cannot store {}: something other than attention reads it, or several "
          "heads do in different ways",
          in_.input_name(cache));
    return width->second;
  }

  bool replace_cache(Rewriter& r, NodeId id) const {
    const auto cache = caches_.find(id);
    if (cache == caches_.end()) return false;
    const Node& node = in_.node(id);
    Type type = node.results[0];
    type.storage = ops::int8_rows(type.shape.rank(), cache->second);
    Attrs attrs = node.attrs;
    attrs.set("storage", type.storage.str());
    r.copy(id, std::move(attrs));
    return true;
  }

  bool append_integers(Rewriter& r, NodeId id, size_t part) const {
    const Node& node = in_.node(id);
    const int64_t width = caches_.at(node.operands[0].node);
    r.enter_scope_of(id);
    std::vector<Value> operands = r.operands(id);
    operands[part] = store(operands[part], ops::int8_rows(operands[part].shape().rank(), width));
    r.bind({id, 0}, call(*node.op, operands, node.attrs)[0]);
    return true;
  }

  void check_kernels(const Graph& out) const {
    if (caches_.empty()) return;
    for (NodeId id = 0; id < out.size(); ++id) {
      if (out.is_input(id)) continue;
      const auto is_stored = [&](ValueId v) { return !out.type(v).storage.is_plain(); };
      const Node& node = out.node(id);
      if (is(node, Op::attention) && std::ranges::any_of(node.operands, is_stored) &&
          !target_.runs(out, id))
        user_error("{} has no attention that reads a cache in int8; leave --kv-cache out",
                   target_.name);
    }
  }

  static constexpr int64_t kNotRead = 0;  // width of values that other nodes than attention read
  const Graph& in_;
  const Target& target_;
  std::map<ValueId, int64_t> widths_;  // head width with which attention reads a value
  std::map<NodeId, NodeId> appends_;   // node that appends to a cache
  std::map<NodeId, int64_t> caches_;   // head width of each cache
};

}  // namespace

Graph quantize_cache(const Graph& graph, const Target& target, Notes* notes) {
  return CacheQuantizer(graph, target).run(notes);
}

}  // namespace brrr
