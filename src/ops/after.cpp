// after: an order between two nodes that share no value, written as a value. What is to run late
// (a forward node that the backward pass runs again) reads its operand through it; then no pass has
// to know about the order to keep it, and no two nodes that read at different times are equal.

#include "ops/support.h"

namespace brrr {

Value after(Value x, Value gate) { return call1(Op::after, {x, gate}); }

namespace ops {

std::vector<OpDef> order_ops() {
  OpDef d;
  d.name = "after";
  d.doc =
      "y = x, but not before gate has been computed: what reads y runs after the gate. x, y: "
      "[...], in any storage; gate: any tensor, whose values do not matter. Costs nothing";
  d.op_class = OpClass::movement;
  d.stored_operands = 0b1;
  d.view = [](const Node&, std::span<const Type>) { return std::optional<int64_t>(0); };
  d.infer = [](const InferContext& c) {
    expect_operands(c, 2);
    return std::vector<Type>{c.in[0]};
  };
  d.evaluate = [](const EvalContext& c) { c.out[0].copy_elements(*c.in[0]); };
  d.vjp = [](VjpContext& c) {
    if (c.wants(0)) c.set(0, c.grad(0));
  };
  d.cost = [](const Node&, std::span<const Type>) { return Cost{}; };
  d.samples = [] {
    return std::vector<Sample>{{{tensor({3, 5}), tensor({2})}, {}},
                               {{tensor({}), tensor({2}, 0, 1000, DType::i32)}, {}}};
  };
  std::vector<OpDef> list;
  list.push_back(std::move(d));
  return list;
}

}  // namespace ops
}  // namespace brrr
