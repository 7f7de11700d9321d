// SiLU (Elfwing et al. 2017), which gates the products of SwiGLU (Shazeer 2020), and its
// derivative.

#include "ops/support.h"

namespace brrr {
namespace {

OpDef silu_op(bool gradient) {
  using namespace ops;
  const size_t operands = gradient ? 2 : 1;
  OpDef d;
  d.name = gradient ? "silu_grad" : "silu";
  d.code = gradient ? "silu_grad({0}, {1})" : "silu({0})";
  d.is_gradient = gradient;
  d.is_activation = !gradient;
  d.doc = gradient ? "dx = dy d silu(x) / dx. dy, x, dx: [...]" : "y = x / (1 + e^-x). x, y: [...]";
  d.infer = [operands](const InferContext& c) {
    expect_operands(c, operands);
    for (size_t i = 0; i < operands; ++i) expect_float(c, i, "x");
    if (c.in[0] != c.in.back())
      c.fail("dy and x must agree; got {} and {}", c.in[0].str(), c.in.back().str());
    return std::vector<Type>{c.in[0]};
  };
  d.decompose = [gradient](const DecomposeContext& c) {
    Value x = c.in.back(), s = sigmoid(x);
    return std::vector<Value>{gradient ? c.in[0] * (s * (1.0 + x * (1.0 - s))) : x * s};
  };
  if (!gradient)
    d.vjp = [](VjpContext& c) { c.set(0, call1(Op::silu_grad, {c.grad(0), c.operand(0)})); };
  d.cost = [gradient](const Node& n, std::span<const Type> in) {
    return streaming_cost(n, in, (gradient ? 8 : 4) * elements(in[0]));
  };
  d.samples = [operands] {
    std::vector<Sample> out;
    for (const Shape& shape : {Shape{3, 37}, Shape{2, 4, 64}, Shape{}})
      out.push_back({std::vector<Sample::Operand>(operands, tensor(shape, -6, 6)), {}});
    return out;
  };
  d.in_place = {{0, 0}};
  if (gradient) d.in_place.push_back({0, 1});
  return d;
}

}  // namespace

Value silu(Value x) { return call1(Op::silu, {x}); }

namespace ops {

std::vector<OpDef> silu_ops() { return {silu_op(false), silu_op(true)}; }

}  // namespace ops
}  // namespace brrr
