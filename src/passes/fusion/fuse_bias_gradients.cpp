// Bias gradients: the sum over the rows of dY joins the product that reads dY for the gradient of
// the weight. Runs before `fuse`, so that a sum does not keep dY's own computation (GELU's
// derivative) in a cluster when it could be the epilogue of a product.

#include <map>

#include "base/human.h"
#include "ops/fused.h"
#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {
namespace {

class BiasGradientFuser {
 public:
  BiasGradientFuser(const Graph& graph, const Target& target) : g_(graph), target_(target) {
    first_reader_.assign(graph.size(), kNoNode);
    for (NodeId id = 0; id < graph.size(); ++id)
      for (const ValueId& v : graph.node(id).operands)
        if (first_reader_[v.node] == kNoNode) first_reader_[v.node] = id;
  }

  Graph run(Notes* notes) {
    for (NodeId id = 0; id < g_.size(); ++id) find_product(id);
    for (NodeId id = 0; id < g_.size(); ++id)
      if (is(g_.node(id), Op::sum)) join(id);
    if (sum_of_.empty()) return g_;
    Rewriter r(g_);
    for (NodeId id = 0; id < g_.size(); ++id) {
      if (is_joined_.contains(id)) continue;
      if (const auto at = sum_of_.find(id); at != sum_of_.end())
        emit(r, id, at->second);
      else
        r.copy(id);
    }
    if (notes)
      notes->push_back(fmt::format("rows of an operand summed in {}, {:.1f} MiB less to read",
                                   counted(std::ssize(sum_of_), "product"), bytes_saved_ / 0x1p20));
    return drop_dead(r.finish());
  }

 private:
  ValueId root(ValueId v) const { return behind_reshapes(g_, v); }

  /// The gradient of a weight contracts the rows of both of its operands.
  void find_product(NodeId id) {
    const Node& node = g_.node(id);
    const auto form = product_form(node);
    if (!form || !form->transpose_a || form->transpose_b) return;
    for (const ValueId& v : node.operands)
      if (g_.type(v).shape.rank() != 2) return;
    for (const ValueId& v : node.operands) products_[root(v)].push_back(id);
  }

  /// dY, whose rows are summed. In 16 bits it is summed in f32: a cast that changes no number.
  ValueId summed(NodeId sum) const {
    const ValueId x = root(g_.node(sum).operands[0]);
    if (!is(g_.node(x.node), Op::cast) || g_.type(x).dtype != DType::f32) return x;
    const ValueId from = g_.node(x.node).operands[0];
    const DType t = g_.type(from).dtype;
    return t == DType::bf16 || t == DType::f16 ? root(from) : x;
  }

  void join(NodeId sum) {
    const ValueId dy = summed(sum);
    const auto at = products_.find(dy);
    if (at == products_.end() || costs_nothing_beside(dy.node)) return;
    for (const NodeId product : at->second) {
      if (sum_of_.contains(product)) continue;
      // What reads the sum must not come before the product, or the product would wait for itself.
      if (first_reader_[sum] < product) continue;
      if (!target_.gains_by_bias_gradient(g_, product, sum) || !runs(product, sum)) continue;
      sum_of_[product] = sum;
      is_joined_[sum] = true;
      return;
    }
  }

  /// Whether dY is computed by a cluster, which sums it on the way, and would not rather be the
  /// epilogue of a product.
  bool costs_nothing_beside(NodeId dy) const {
    const Node& node = g_.node(dy);
    if (node.op->op_class == OpClass::normalisation) return true;
    if (!is_pointwise(*node.op)) return false;
    for (const ValueId& v : node.operands) {
      const NodeId from = root(v).node;
      if (is_matrix_product(g_.node(from)) && target_.gains_by_epilogue(g_, from, dy)) return false;
    }
    return true;
  }

  /// Results: the product, the sum. Operands: those of the product.
  Graph body_of(NodeId product, NodeId sum) const {
    const Node &first = g_.node(product), &second = g_.node(sum);
    Graph body;
    std::vector<ValueId> operands;
    for (const ValueId& v : operands_of(product)) {
      const Type& t = g_.type(v);
      operands.push_back(body.input(fmt::format("a{}", operands.size()), t).id);
    }
    const bool twice = operands.size() == 1;  // both operands are one
    const std::vector read{operands.front(), operands.back()};
    const Value y = body.value(body.add(*first.op, read, first.attrs));
    const Type& from = g_.type(second.operands[0]);
    Value x = body.value(read[twice || !sums_left(product, sum) ? 1 : 0].node);
    if (x.dtype() != from.dtype) x = cast(x, from.dtype);
    if (x.shape() != from.shape) x = reshape(x, from.shape);
    body.output("0", y);
    body.output("1", body.value(body.add(*second.op, std::vector{x.id}, second.attrs)));
    return body;
  }
  std::vector<ValueId> operands_of(NodeId product) const {
    std::vector<ValueId> list = g_.node(product).operands;
    if (list[0] == list[1]) list.pop_back();
    return list;
  }
  /// Whether the sum is not one of the right operand.
  bool sums_left(NodeId product, NodeId sum) const {
    const ValueId right = root(g_.node(product).operands[1]);
    return right != summed(sum);
  }

  bool runs(NodeId product, NodeId sum) const {
    const Graph body = body_of(product, sum);
    if (!bias_gradient_of(body)) return false;
    Graph alone;
    std::vector<ValueId> operands;
    for (const ValueId& v : operands_of(product)) {
      const Type& t = g_.type(v);
      operands.push_back(alone.input(std::to_string(operands.size()), t).id);
    }
    return target_.runs(alone, alone.add(op(Op::fused), operands, {{"body", Region(body)}}));
  }

  void emit(Rewriter& r, NodeId product, NodeId sum) {
    std::vector<ValueId> operands;
    for (const ValueId& v : operands_of(product)) operands.push_back(r.map(v).id);
    r.enter_scope_of(product);
    const NodeId fused =
        r.out().add(op(Op::fused), operands, {{"body", Region(body_of(product, sum))}});
    r.bind({product, 0}, r.out().value(fused, 0));
    r.bind({sum, 0}, r.out().value(fused, 1));
    bytes_saved_ += static_cast<double>(g_.type(summed(sum)).bytes());
  }

  const Graph& g_;
  const Target& target_;
  std::vector<NodeId> first_reader_;
  std::map<ValueId, std::vector<NodeId>> products_;  // by what they read
  std::map<NodeId, NodeId> sum_of_;                  // by product
  std::map<NodeId, bool> is_joined_;                 // sums
  double bytes_saved_ = 0;
};

}  // namespace

Graph fuse_bias_gradients(const Graph& graph, const Target& target, Notes* notes) {
  return BiasGradientFuser(graph, target).run(notes);
}

}  // namespace brrr
