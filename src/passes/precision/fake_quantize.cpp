#include "passes/precision/fake_quantize.h"

#include <map>
#include <tuple>

#include "base/human.h"
#include "ops/ops.h"

namespace brrr {
namespace {

constexpr int kRowBits = 8;

class FakeQuantizer {
 public:
  FakeQuantizer(const Graph& in, const WeightQuantization& quantization)
      : in_(in), q_(quantization) {}

  Graph run(Notes* notes) {
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      const Node& node = in_.node(id);
      const std::optional<ProductForm> form = product_form(node);
      if (!form || form->transpose_a || !is_chosen(node.operands[1])) return false;
      check_groups(node.operands[1], *form);
      r.enter_scope_of(id);
      std::vector<Value> operands = r.operands(id);
      if (q_.of_rows) operands[0] = rounded(operands[0], kRowBits, 0, -1);
      operands[1] = rounded(operands[1], q_.bits, q_.group, form->transpose_b ? -1 : -2);
      r.bind({id, 0}, call(node.op->id, operands, node.attrs)[0]);
      ++products_;
      return true;
    });
    if (notes)
      notes->push_back(fmt::format("{} read weights rounded to {} bits{}{}",
                                   counted(products_, "product"), q_.bits,
                                   q_.group > 0 ? fmt::format(", groups of {}", q_.group) : "",
                                   q_.of_rows ? ", rows rounded to 8 bits" : ""));
    return out;
  }

 private:
  bool is_chosen(ValueId weight) const {
    return in_.is_input(weight.node) && in_.role(weight.node) == Role::parameter &&
           is_worth_quantizing(in_.type(weight).shape) &&
           (q_.only == nullptr || q_.only->contains(in_.input_name(weight.node)));
  }

  void check_groups(ValueId weight, const ProductForm& form) const {
    const int64_t terms = in_.type(weight).shape.size(form.transpose_b ? 1 : 0);
    if (q_.group > 0 && terms % q_.group != 0)
      user_error(
          "--qat: groups of {} do not divide the {} inputs of {}; use a smaller "
          "--qat-group-size, or --qat int8",
          q_.group, terms, in_.input_name(weight.node));
  }

  /// The rounded value, made once for all products that read it.
  Value rounded(Value x, int bits, int group, int axis) {
    const auto [at, is_new] = rounded_.try_emplace({x.id, bits, group, axis});
    if (is_new) at->second = fake_quantize(x, bits, group, axis);
    return at->second;
  }

  const Graph& in_;
  const WeightQuantization& q_;
  std::map<std::tuple<ValueId, int, int, int>, Value> rounded_;
  int64_t products_ = 0;
};

}  // namespace

Graph fake_quantize_products(const Graph& graph, const WeightQuantization& quantization,
                             Notes* notes) {
  return FakeQuantizer(graph, quantization).run(notes);
}

}  // namespace brrr
