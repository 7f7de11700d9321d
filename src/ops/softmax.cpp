// softmax over the last axis, and its derivative.

#include "ops/support.h"

namespace brrr {

Value softmax(Value x) { return call1(Op::softmax, {x}); }

namespace ops {
namespace {

std::vector<Sample> softmax_samples(size_t operands) {
  std::vector<Sample> out;
  for (const Shape& shape : {Shape{3, 37}, Shape{2, 3, 4, 64}, Shape{5, 1}, Shape{2, 300}})
    out.push_back({std::vector<Sample::Operand>(operands, tensor(shape, -3, 3)), {}});
  return out;
}

}  // namespace

std::vector<OpDef> softmax_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "softmax";
    d.row_operands = 1;
    d.doc =
        "y = e^(x - max x) / sum e^(x - max x) over the last axis; a row of -inf gives NaN. x, y: "
        "[..., N]; max and sum in f32";
    d.op_class = OpClass::normalisation;
    d.autocast = Autocast::fp32;
    d.infer = [](const InferContext& c) {
      expect_operands(c, 1);
      expect_float(c, 0, "x");
      if (c.in[0].shape.rank() < 1) c.fail("x needs an axis; got {}", c.in[0].str());
      return std::vector<Type>{c.in[0]};
    };
    d.decompose = [](const DecomposeContext& c) {
      Value e = exp(c.in[0] - max(c.in[0], {-1}, true));
      return std::vector<Value>{e / sum(e, {-1}, true)};
    };
    d.vjp = [](VjpContext& c) { c.set(0, call1(Op::softmax_grad, {c.grad(0), c.result(0)})); };
    d.cost = [](const Node& n, std::span<const Type> in) {
      return streaming_cost(n, in, 5 * elements(in[0]));
    };
    d.samples = [] { return softmax_samples(1); };
    d.in_place = {{0, 0}};
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "softmax_grad";
    d.row_operands = 2;
    d.is_gradient = true;
    d.doc = "dx = y (dy - sum(dy y)) over the last axis. dy, y, dx: [..., N]; sum in f32";
    d.op_class = OpClass::normalisation;
    d.autocast = Autocast::fp32;
    d.infer = [](const InferContext& c) {
      expect_operands(c, 2);
      expect_float(c, 0, "dy");
      if (c.in[0] != c.in[1] || c.in[0].shape.rank() < 1)
        c.fail("dy and y must agree; got {} and {}", c.in[0].str(), c.in[1].str());
      return std::vector<Type>{c.in[0]};
    };
    d.decompose = [](const DecomposeContext& c) {
      Value dy = c.in[0], y = c.in[1];
      return std::vector<Value>{y * (dy - sum(dy * y, {-1}, true))};
    };
    d.cost = [](const Node& n, std::span<const Type> in) {
      return streaming_cost(n, in, 4 * elements(in[0]));
    };
    d.samples = [] { return softmax_samples(2); };
    d.in_place = {{0, 0}, {0, 1}};
    list.push_back(std::move(d));
  }
  return list;
}

}  // namespace ops
}  // namespace brrr
