// fake_quantize: floats rounded to the grid of their later integers, for quantization-aware
// training (Jacob et al. 2018). Made by the pass of that name, before differentiation.

#include "ops/support.h"

namespace brrr {
namespace {

constexpr double kLeastScale = 1e-30;

int64_t most_of(int64_t bits) { return (int64_t{1} << (bits - 1)) - 1; }

/// The shape with an axis for the groups in front of the terms of a group.
Shape in_groups(const Shape& x, int axis, int64_t group) {
  Shape shape = x;
  const int at = x.rank() + axis;
  shape[at] = group;
  shape.insert(at, x.size(at) / group);
  return shape;
}

OpDef fake_quantize_op() {
  using namespace ops;
  OpDef d;
  d.name = "fake_quantize";
  d.doc =
      "y = scale round(x / scale), halves to even, where scale = max |x| / (2^({bits} - 1) - 1), "
      "1e-30 at least, over {group} terms that follow one another along {axis} (-1 or -2), or over "
      "all of them where {group} is 0: what symmetric integers of 4 or 8 bits hold of x. dx = dy, "
      "as if nothing were rounded (straight-through estimator). x, y: [...]";
  d.op_class = OpClass::normalisation;
  d.autocast = Autocast::fp32;
  d.is_straight_through = true;
  d.infer = [](const InferContext& c) {
    expect_operands(c, 1);
    expect_float(c, 0, "x");
    const int64_t bits = c.attr<int64_t>("bits"), group = c.attr<int64_t>("group"),
                  axis = c.attr<int64_t>("axis");
    const Shape& x = c.in[0].shape;
    if (bits != 4 && bits != 8) c.fail("bits must be 4 or 8; got {}", bits);
    if (axis != -1 && axis != -2) c.fail("axis must be -1 or -2; got {}", axis);
    if (x.rank() < -axis) c.fail("x has no axis {}; got {}", axis, c.in[0].str());
    if (group < 0) c.fail("group must be at least 0; got {}", group);
    if (group > 0 && x.size(static_cast<int>(axis)) % group != 0)
      c.fail("groups of {} do not divide the {} terms of x", group, x.size(static_cast<int>(axis)));
    return std::vector<Type>{c.in[0]};
  };
  d.decompose = [](const DecomposeContext& c) {
    const Value x = c.in[0];
    const int64_t group = c.node.attrs.get<int64_t>("group");
    const auto axis = static_cast<int>(c.node.attrs.get<int64_t>("axis"));
    const Value terms = group > 0 ? reshape(x, in_groups(x.shape(), axis, group)) : x;
    const auto most = static_cast<double>(most_of(c.node.attrs.get<int64_t>("bits")));
    const Value scale =
        maximum(max(abs(terms), {axis}, true) / most, scalar(c.graph, kLeastScale, x.dtype()));
    const Value y = round(terms / scale) * scale;
    return std::vector<Value>{group > 0 ? reshape(y, x.shape()) : y};
  };
  d.vjp = [](VjpContext& c) { c.set(0, c.grad(0)); };
  d.cost = [](const Node& n, std::span<const Type> in) {
    return streaming_cost(n, in, 5 * elements(in[0]));
  };
  d.samples = [] {
    std::vector<Sample> out;
    for (const int64_t bits : {int64_t{4}, int64_t{8}})
      for (const int64_t axis : {int64_t{-1}, int64_t{-2}})
        for (const int64_t group : {int64_t{0}, int64_t{8}})
          out.push_back(
              {{tensor({3, 16, 24}, -3, 3)}, {{"bits", bits}, {"group", group}, {"axis", axis}}});
    return out;
  };
  return d;
}

}  // namespace

Value fake_quantize(Value x, int64_t bits, int64_t group, int64_t axis) {
  return call1(Op::fake_quantize, {x}, {{"bits", bits}, {"group", group}, {"axis", axis}});
}

namespace ops {

std::vector<OpDef> fake_quantize_ops() { return {fake_quantize_op()}; }

}  // namespace ops
}  // namespace brrr
