#include "passes/adapters/add_adapters.h"

#include <map>
#include <vector>

#include "ir/rewriter.h"
#include "ops/ops.h"

namespace brrr {
namespace {

/// Whether a convolution by a weight of this shape is a product over the channels at each place.
bool is_pointwise(const Node& conv, const Shape& weight) {
  if (conv.attrs.get<int64_t>("groups") != 1 || weight.rank() != 4) return false;
  return weight.size(2) == 1 && weight.size(3) == 1;
}

}  // namespace

NodeId multiplied_parameter(const Graph& g, NodeId id) {
  const Node& node = g.node(id);
  const bool is_conv = is(node, Op::conv);
  const std::optional<ProductForm> form = product_form(node);
  if (!is_conv && (!form || form->transpose_a)) return kNoNode;
  const NodeId weight = node.operands[1].node;
  if (!g.is_input(weight) || g.role(weight) != Role::parameter) return kNoNode;
  const Shape& shape = g.type({weight, 0}).shape;
  const bool is_matrix = is_conv ? is_pointwise(node, shape) : shape.rank() == 2;
  return is_matrix ? weight : kNoNode;
}

bool is_of_base(const Graph& graph, NodeId parameter) {
  return graph.node(parameter).attrs.get_or<bool>(kOfBase, false);
}

void put_below_adapters(Graph& graph, NodeId parameter) {
  graph.freeze(parameter);
  graph.node(parameter).attrs.set(kOfBase, true);
}

namespace {

constexpr const char *kBaseStorage = "base_storage", *kBaseTensor = "base_tensor",
                     *kBaseIsMade = "base_is_made";

}  // namespace

void set_base_form(Graph& graph, NodeId parameter, const BaseForm& form) {
  Attrs& attrs = graph.node(parameter).attrs;
  if (form.storage) attrs.set(kBaseStorage, form.storage->str());
  if (!form.tensor.empty()) attrs.set(kBaseTensor, form.tensor);
  if (form.is_made) attrs.set(kBaseIsMade, true);
}

BaseForm base_form(const Graph& graph, NodeId parameter) {
  const Attrs& attrs = graph.node(parameter).attrs;
  return {storage_from_name(attrs.get_or<std::string>(kBaseStorage, "")),
          attrs.get_or<std::string>(kBaseTensor, ""), attrs.get_or<bool>(kBaseIsMade, false)};
}

namespace {

class AdapterBuilder {
 public:
  AdapterBuilder(Rewriter& rewriter, AdapterUse use) : g_(rewriter.out()), use_(use) {}

  /// x: the left operand of `product`, [..., in], or of a convolution [N, in, H, W]. Returns
  /// s (x Aᵀ) Bᵀ, which has the shape of the product.
  Value change(const ProductAdapter& adapter, Value x, const Node& product) {
    const bool is_conv = is(product, Op::conv);
    const int axis = is_conv ? 1 : -1;
    const int64_t in = x.shape().size(axis), out = product.results[0].shape.size(axis);
    Shape a_shape{adapter.rank, in}, b_shape{out, adapter.rank};
    if (is_conv) a_shape = {adapter.rank, in, 1, 1}, b_shape = {out, adapter.rank, 1, 1};
    const Value a = parameter(adapter.a, a_shape, adapter.is_trained);
    const Value b = parameter(adapter.b, b_shape, adapter.is_trained);
    if (use_ == AdapterUse::training && adapter.dropout > 0)
      x = dropout(x, rng_key(), adapter.dropout, adapter.stream);
    // A takes the places that the strides of the convolution choose.
    Value low =
        is_conv ? call(Op::conv, std::vector{x, a}, product.attrs)[0] : matmul(x, a, false, true);
    if (adapter.scale != 1) low = low * adapter.scale;
    if (!is_conv) return matmul(low, b, false, true);
    return conv(low, b, std::nullopt, {{1, 1}, {1, 1}, {0, 0, 0, 0}}, 1);
  }
  /// Returns DoRA's factor in a shape that broadcasts over the product's outputs: [out], or
  /// [out, 1, 1] for a convolution.
  Value factor(const ProductAdapter& adapter, const Node& product) {
    const bool is_conv = is(product, Op::conv);
    const int64_t out = product.results[0].shape.size(is_conv ? 1 : -1);
    const Value factor = parameter(adapter.factor, {out}, false);
    return is_conv ? reshape(factor, {out, 1, 1}) : factor;
  }

 private:
  Value parameter(const std::string& name, Shape shape, bool is_trained) {
    if (const NodeId there = g_.find_input(name); there != kNoNode) return g_.value(there);
    Attrs attrs;
    attrs.set(kOfAdapter, true);
    if (use_ == AdapterUse::training && !is_trained) attrs.set(kTrained, false);
    return g_.input(name, Type{DType::f32, std::move(shape)}, Role::parameter, std::move(attrs));
  }
  Value rng_key() {
    const NodeId there = g_.find_input("rng_key");
    return there != kNoNode ? g_.value(there) : g_.input("rng_key", {2}, DType::i32);
  }

  Graph& g_;
  const AdapterUse use_;
};

}  // namespace

Graph add_adapters(const Graph& in, std::span<const ProductAdapter> adapters, AdapterUse use) {
  std::multimap<std::string_view, const ProductAdapter*> by_weight;
  for (const ProductAdapter& adapter : adapters) by_weight.emplace(adapter.weight, &adapter);
  return rewrite(in, [&](Rewriter& r, NodeId id) {
    const NodeId weight = multiplied_parameter(in, id);
    if (weight == kNoNode) return false;
    const auto [first, last] = by_weight.equal_range(in.input_name(weight));
    if (first == last) return false;
    r.enter_scope_of(id);
    AdapterBuilder builder(r, use);
    const Node& node = in.node(id);
    const std::vector<Value> operands = r.operands(id);
    const std::optional<ProductForm> form = product_form(node);
    const bool has_bias = form && form->has_bias;
    const bool has_factor = !first->second->factor.empty();
    BRRR_CHECK(!has_factor || std::next(first) == last, "several adapters of {}, one with a factor",
               in.input_name(weight));
    // The factor does not multiply the bias.
    Value y = has_factor && has_bias ? matmul(operands[0], operands[1], false, form->transpose_b)
                                     : call(*node.op, operands, node.attrs)[0];
    for (auto at = first; at != last; ++at) y = y + builder.change(*at->second, operands[0], node);
    if (has_factor) y = y * builder.factor(*first->second, node);
    if (has_factor && has_bias) y = y + operands[2];
    r.bind({id, 0}, y);
    return true;
  });
}

}  // namespace brrr
