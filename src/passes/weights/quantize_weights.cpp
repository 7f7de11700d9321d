// Weights of products as integers: each product reads its right operand from a `store` into panels
// of integers, which derive_weights turns into an input that the loader makes.

#include <algorithm>
#include <map>

#include "base/human.h"
#include "base/memory.h"
#include "ops/ops.h"
#include "ops/quantized/quantized_rows.h"
#include "passes/weights/weight_choice.h"

namespace brrr {
namespace {

class WeightQuantizer {
 public:
  WeightQuantizer(const Graph& in, const Target& target, const WeightQuantization& quantization)
      : in_(in), target_(target), q_(quantization) {}

  Graph run(Notes* notes) {
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      const auto form = form_of(id);
      if (!form) return false;
      const Type weight = stored_type(id, *form);
      if (!runs(id, *form, weight)) {
        ++refused_;
        return false;
      }
      multiply(r, id, *form, weight.storage);
      return true;
    });
    if (products_ == 0 && refused_ > 0)
      user_error("{} has no products with weights of {} bits; use --precision bf16 or fp32",
                 target_.name, q_.bits);
    if (notes) report(*notes);
    return out;
  }

 private:
  struct Form {
    bool transposed = false, has_bias = false;
  };

  /// How the node multiplies by a weight that is worth quantising; nothing: it does not.
  std::optional<Form> form_of(NodeId id) const {
    const Node& node = in_.node(id);
    const std::optional<ProductForm> form = product_form(node);
    if (!form || form->transpose_a || !is_weight(node.operands[1])) return std::nullopt;
    const Type& w = in_.type(node.operands[1]);
    if (w.shape.rank() != 2 || !w.shape.is_static() || !w.storage.is_plain() || !is_float(w.dtype))
      return std::nullopt;
    const int64_t terms = w.shape.size(form->transpose_b ? 1 : 0);
    if (q_.of_rows && (q_.group > 0 ? q_.group : terms) > ops::kMostQuantizedTerms)
      return std::nullopt;
    if (!is_worth_quantizing(w.shape)) return std::nullopt;
    return Form{form->transpose_b, form->has_bias};
  }

  /// Whether a value is a parameter that is chosen, or several side by side (join_products).
  bool is_weight(ValueId v) const {
    const auto is_parameter = [&](ValueId p) {
      return in_.is_input(p.node) && in_.role(p.node) == Role::parameter &&
             (q_.only == nullptr || q_.only->contains(in_.input_name(p.node)));
    };
    if (in_.is_input(v.node)) return is_parameter(v);
    const Node& node = in_.node(v.node);
    return node.op->derives_weights && !node.operands.empty() &&
           std::ranges::all_of(node.operands, is_parameter);
  }

  Type stored_type(NodeId id, const Form& form) const {
    Type w = in_.type(in_.node(id).operands[1]);
    w.storage = {right_layout(form.transposed), {q_.bits, form.transposed ? 1 : 0, q_.group}};
    return w;
  }

  Attrs attrs_of(const Node& node, const Form& form) const {
    Attrs attrs{{"transpose_a", false}, {"transpose_b", form.transposed}};
    // The product stays f32, because rounding comes after the bias is added.
    const DType operand = in_.type(node.operands[0]).dtype;
    const DType result = form.has_bias ? DType::f32 : node.results[0].dtype;
    if (result != operand) attrs.set("dtype", result);
    if (q_.of_rows) attrs.set("left_bits", int64_t{8});
    return attrs;
  }

  bool runs(NodeId id, const Form& form, const Type& weight) const {
    Graph alone;
    const Node& node = in_.node(id);
    const Type& left = in_.type(node.operands[0]);
    if (!left.shape.is_static()) return false;
    const Value a = alone.input("a", left), b = alone.input("b", weight);
    const std::vector<ValueId> operands{a.id, b.id};
    return target_.runs(alone, alone.add(op(Op::matmul), operands, attrs_of(node, form)));
  }

  void multiply(Rewriter& r, NodeId id, const Form& form, const Storage& storage) {
    const Node& node = in_.node(id);
    r.enter_scope_of(id);
    const std::vector<Value> old = r.operands(id);
    const auto [at, is_new] = stored_.try_emplace({old[1].id, storage.str()});
    if (is_new) {
      at->second = store(old[1], storage);
      elements_ += old[1].shape().elements();
    }
    ++products_;
    Value y = call(Op::matmul, std::vector<Value>{old[0], at->second}, attrs_of(node, form))[0];
    if (form.has_bias) y = cast(y + cast(old[2], DType::f32), node.results[0].dtype);
    r.bind({id, 0}, y);
  }

  void report(Notes& notes) const {
    if (products_ > 0)
      notes.push_back(fmt::format("{} of {} weights in {} bits{}{}", counted(products_, "product"),
                                  with_commas(elements_), q_.bits,
                                  q_.group > 0 ? fmt::format(", groups of {}", q_.group) : "",
                                  q_.of_rows ? ", rows in 8 bits" : ""));
    else if (refused_ == 0)
      notes.push_back(fmt::format("no product has a weight of at least {} floats",
                                  with_commas(kLeastQuantizedElements)));
    if (refused_ > 0)
      notes.push_back(fmt::format("{} stay as they are: {} has no kernel",
                                  counted(refused_, "product"), target_.name));
  }

  const Graph& in_;
  const Target& target_;
  WeightQuantization q_;
  std::map<std::pair<ValueId, std::string>, Value> stored_;
  int64_t products_ = 0, refused_ = 0, elements_ = 0;
};

}  // namespace

Graph quantize_weights(const Graph& graph, const Target& target, const Quantization& quantization,
                       Notes* notes) {
  return quantize_chosen_weights(graph, target, quantization, notes);
}

Graph quantize_chosen_weights(const Graph& graph, const Target& target,
                              const WeightQuantization& quantization, Notes* notes) {
  return WeightQuantizer(graph, target, quantization).run(notes);
}

}  // namespace brrr
