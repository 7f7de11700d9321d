#include <map>
#include <set>

#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {
namespace {

/// Products of one left operand with matrices that nothing else reads.
using Group = std::vector<NodeId>;

/// What products must have in common to be parts of one.
struct Key {
  ValueId left;
  bool transposed;  // the right operands
  DType right, result;
  auto operator<=>(const Key&) const = default;
};

class Joiner {
 public:
  explicit Joiner(const Graph& in) : in_(in), uses_(count_uses(in)) {
    std::map<Key, Group> groups;
    for (NodeId id = 0; id < in.size(); ++id)
      if (const auto key = key_of(id)) {
        Group& group = groups[*key];
        if (group.empty() || in.node(id).attrs == in.node(group.front()).attrs) group.push_back(id);
      }
    for (auto& [key, group] : groups)
      if (group.size() > 1) {
        const NodeId first = group.front();
        for (const NodeId id : group) first_of_[id] = first;
        groups_[first] = std::move(group);
      }
  }

  Graph run(Notes* notes) {
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      const auto at = first_of_.find(id);
      if (at == first_of_.end()) return moved_.contains(id);
      if (at->second == id) join(r, groups_.at(id));
      return true;
    });
    if (notes && !groups_.empty())
      notes->push_back(fmt::format("{} products became {}", first_of_.size(), groups_.size()));
    return out;
  }

 private:
  std::optional<Key> key_of(NodeId id) const {
    const Node& node = in_.node(id);
    const std::optional<ProductForm> form = product_form(node);
    if (!form || form->has_bias || form->transpose_a) return std::nullopt;
    const ValueId w = node.operands[1];
    if (!in_.is_input(w.node) || in_.role(w.node) != Role::parameter || uses_[w.node][0] != 1 ||
        in_.type(w).shape.rank() != 2 || !in_.type(w).storage.is_plain())
      return std::nullopt;
    return Key{node.operands[0], form->transpose_b, in_.type(w).dtype, node.results[0].dtype};
  }

  /// At the place of the first of them: weights that come behind it come before it now.
  void join(Rewriter& r, const Group& group) {
    const Node& first = in_.node(group.front());
    const bool transposed = product_form(first)->transpose_b;
    const Value x = r.map(first.operands[0]);
    std::vector<Value> weights;
    for (const NodeId id : group) {
      const ValueId w = in_.node(id).operands[1];
      if (w.node > group.front()) {
        r.copy(w.node);
        moved_.insert(w.node);
      }
      weights.push_back(r.map(w));
    }
    const std::vector<Value> in{x, concat(weights, transposed ? 0 : 1)};
    const Value y = call(*first.op, in, first.attrs)[0];
    const int axis = y.shape().rank() - 1;
    int64_t start = 0;
    for (const NodeId id : group) {
      const int64_t size = in_.node(id).results[0].shape.size(-1);
      r.bind({id, 0}, slice(y, axis, start, size));
      start += size;
    }
  }

  const Graph& in_;
  std::vector<std::vector<uint32_t>> uses_;
  std::map<NodeId, NodeId> first_of_;  // of its group, by product
  std::map<NodeId, Group> groups_;     // by the first product
  std::set<NodeId> moved_;             // weights that are in the new graph already
};

}  // namespace

Graph join_products(const Graph& graph, Notes* notes) { return Joiner(graph).run(notes); }

}  // namespace brrr
