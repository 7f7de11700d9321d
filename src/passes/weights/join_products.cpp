#include <algorithm>
#include <map>
#include <set>

#include "ops/ops.h"
#include "passes/adapters/add_adapters.h"
#include "passes/passes.h"
#include "passes/weights/weight_choice.h"

namespace brrr {
namespace {

constexpr const char* kFloats = "floats";  // a form: stays what it is

/// A product whose weight has no other reader. If the only reader of the product adds a bias, that
/// addition is joined too.
struct JoinedProduct {
  NodeId product = kNoNode;
  NodeId sum = kNoNode;
  ValueId bias;  // of the sum
};

/// Products of one left operand.
using JoinedGroup = std::vector<JoinedProduct>;

/// Products with equal keys can be computed as one.
struct Key {
  ValueId left;
  bool transposed;  // the right operands
  DType right, result;
  std::string form;  // form_of_parameter()
  auto operator<=>(const Key&) const = default;
};

class ProductJoiner {
 public:
  ProductJoiner(const Graph& in, const WeightQuantization& quantization)
      : in_(in), q_(quantization), uses_(count_uses(in)), only_reader_(in.size()) {
    for (NodeId id = 0; id < in.size(); ++id)
      for (const ValueId& v : in.node(id).operands) only_reader_[v.node] = id;
    std::map<Key, JoinedGroup> groups;
    for (NodeId id = 0; id < in.size(); ++id)
      if (const auto key = key_of(id)) {
        JoinedGroup& group = groups[*key];
        if (group.empty() || in.node(id).attrs == in.node(group.front().product).attrs)
          group.push_back(member_of(id));
      }
    for (auto& [key, group] : groups)
      if (group.size() > 1) add(std::move(group));
  }

  Graph run(Notes* notes) {
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      if (const auto at = groups_.find(id); at != groups_.end()) join(r, at->second);
      return joined_.contains(id) || moved_.contains(id);
    });
    if (notes && !groups_.empty())
      notes->push_back(
          fmt::format("{} products became {}{}", products_, groups_.size(),
                      biases_ > 0 ? fmt::format(", {} biases {}", biases_, bias_groups_) : ""));
    return out;
  }

 private:
  void add(JoinedGroup group) {
    // Join biases only if every product of the group has one, all of the same type.
    const bool has_biases = std::ranges::all_of(group, [&](const JoinedProduct& m) {
      return m.sum != kNoNode && in_.type(m.bias).dtype == in_.type(group.front().bias).dtype &&
             in_.node(m.sum).results[0].dtype == in_.node(group.front().sum).results[0].dtype;
    });
    for (JoinedProduct& m : group) {
      if (!has_biases) m.sum = kNoNode;
      joined_.insert(m.product);
      if (m.sum != kNoNode) joined_.insert(m.sum);
    }
    products_ += group.size();
    if (has_biases) biases_ += group.size(), ++bias_groups_;
    groups_[group.front().product] = std::move(group);
  }

  /// The product and, where nothing else reads it, its sum with a vector that is a parameter.
  JoinedProduct member_of(NodeId product) const {
    JoinedProduct m{product, kNoNode, {}};
    if (uses_[product][0] != 1) return m;
    const NodeId reader = only_reader_[product];
    const Node& sum = in_.node(reader);
    if (!is(sum, Op::add)) return m;
    const ValueId bias = sum.operands[sum.operands[0].node == product ? 1 : 0];
    if (!is_parameter(bias) || in_.type(bias).shape.rank() != 1 ||
        in_.type(bias).shape[0] != in_.node(product).results[0].shape[-1] ||
        sum.results[0].shape != in_.node(product).results[0].shape)
      return m;
    return {product, reader, bias};
  }

  bool is_parameter(ValueId v) const {
    return in_.is_input(v.node) && in_.role(v.node) == Role::parameter &&
           in_.type(v).storage.is_plain();
  }

  std::optional<Key> key_of(NodeId id) const {
    const Node& node = in_.node(id);
    const std::optional<ProductForm> form = product_form(node);
    if (!form || form->has_bias || form->transpose_a) return std::nullopt;
    const ValueId w = node.operands[1];
    if (!is_parameter(w) || uses_[w.node][0] != 1 || in_.type(w).shape.rank() != 2)
      return std::nullopt;
    const bool stays_float = q_.bits != 0 && in_.node(w.node).attrs.get_or<bool>(kOfAdapter, false);
    return Key{node.operands[0], form->transpose_b, in_.type(w).dtype, node.results[0].dtype,
               stays_float ? kFloats : form_of_parameter(q_, in_.input_name(w.node))};
  }

  /// Maps a parameter, which is copied first if it comes after the node that is being replaced.
  Value early(Rewriter& r, ValueId parameter, NodeId before) {
    if (parameter.node > before && moved_.insert(parameter.node).second) r.copy(parameter.node);
    return r.map(parameter);
  }

  /// Builds the joined product in the place of the first product of the group.
  void join(Rewriter& r, const JoinedGroup& group) {
    const NodeId place = group.front().product;
    const Node& first = in_.node(place);
    const bool transposed = product_form(first)->transpose_b;
    const Value x = r.map(first.operands[0]);
    std::vector<Value> weights, biases;
    for (const JoinedProduct& m : group) {
      weights.push_back(early(r, in_.node(m.product).operands[1], place));
      if (m.sum != kNoNode) biases.push_back(early(r, m.bias, place));
    }
    const std::vector<Value> in{x, concat(weights, transposed ? 0 : 1)};
    Value y = call(*first.op, in, first.attrs)[0];
    if (!biases.empty()) y = y + concat(biases, 0);
    const int axis = y.shape().rank() - 1;
    int64_t start = 0;
    for (const JoinedProduct& m : group) {
      const int64_t size = in_.node(m.product).results[0].shape.size(-1);
      r.bind({m.sum == kNoNode ? m.product : m.sum, 0}, slice(y, axis, start, size));
      start += size;
    }
  }

  const Graph& in_;
  const WeightQuantization& q_;
  std::vector<std::vector<uint32_t>> uses_;
  std::vector<NodeId> only_reader_;       // of a node with one reader; else the last reader
  std::map<NodeId, JoinedGroup> groups_;  // by the first product
  std::set<NodeId> joined_;               // products and sums that slices replace
  std::set<NodeId> moved_;                // parameters that are in the new graph already
  size_t products_ = 0, biases_ = 0, bias_groups_ = 0;
};

}  // namespace

std::string form_of_parameter(const WeightQuantization& q, const std::string& parameter) {
  // Blocks are packed one by one, without floats between.
  if (q.blocks != nullptr && q.blocks->contains(parameter)) return parameter;
  if (q.only != nullptr && !q.only->contains(parameter)) return kFloats;
  if (q.given == nullptr) return "";
  const auto at = q.given->find(parameter);
  if (at == q.given->end()) return "";
  return fmt::format("{} {}", at->second.bits, at->second.group);
}

Graph join_products(const Graph& graph, Notes* notes) {
  return join_quantized_products(graph, {}, notes);
}

Graph join_quantized_products(const Graph& graph, const WeightQuantization& quantization,
                              Notes* notes) {
  return ProductJoiner(graph, quantization).run(notes);
}

}  // namespace brrr
