// Dropout from the counter-based generator: the mask is a function of (key, stream, index), so it
// is never stored; the backward draws it again.

#include "ops/support.h"

namespace brrr {

Value dropout(Value x, Value key, double p, int64_t stream) {
  if (p == 0) return x;
  return call1(Op::dropout, {x, key}, {{"p", p}, {"stream", stream}});
}

namespace ops {

std::vector<OpDef> dropout_ops() {
  OpDef d;
  d.name = "dropout";
  d.draws_random = true;
  d.doc =
      "y = random_bits(key)[i] >= t ? x / (1 - t/65536) : 0 with t = round(65536 p): the keep "
      "probability is exact, so the expectation is x. x, y: [...]; key: [2] i32";
  d.infer = [](const InferContext& c) {
    expect_operands(c, 2);
    expect_float(c, 0, "x");
    if (c.in[1] != Type{DType::i32, {2}}) c.fail("key must be i32[2]; got {}", c.in[1].str());
    const double p = c.attr<double>("p");
    if (!(p >= 0 && p < 1)) c.fail("p must be in [0, 1); got {}", p);
    expect_stream(c);
    return std::vector<Type>{c.in[0]};
  };
  d.decompose = [](const DecomposeContext& c) {
    Value x = c.in[0];
    const double threshold =
        std::min(65535.0, std::nearbyint(c.node.attrs.get<double>("p") * 65536));
    Value bits = random_bits(c.in[1], x.shape(), c.node.attrs.get<int64_t>("stream"));
    Value keep = greater_equal(bits, scalar(c.graph, threshold, DType::i32));
    return std::vector<Value>{
        where(keep, x * (65536.0 / (65536.0 - threshold)), scalar(c.graph, 0, x.dtype()))};
  };
  // Linear in x: the derivative applies the same mask and scale to dy.
  d.vjp = [](VjpContext& c) { c.set(0, call1(Op::dropout, {c.grad(0), c.operand(1)}, c.attrs())); };
  d.cost = [](const Node& n, std::span<const Type> in) {
    return streaming_cost(n, in, elements(in[0]));
  };
  d.samples = [] {
    std::vector<Sample> out;
    for (double p : {0.0, 0.1, 0.5})
      for (const Shape& shape : {Shape{3, 37}, Shape{2, 4, 64}, Shape{5}})
        out.push_back({{tensor(shape), tensor({2}, 0, 1000, DType::i32)},
                       {{"p", p}, {"stream", int64_t{7}}}});
    return out;
  };
  d.in_place = {{0, 0}};
  std::vector<OpDef> list;
  list.push_back(std::move(d));
  return list;
}

}  // namespace ops
}  // namespace brrr
