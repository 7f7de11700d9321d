// Products in 8 bits: a scale for a whole tensor, the tensor in 8 bits, and the product of two
// such. Made by the pass fp8_products, after differentiation: rounding has no derivative of use.

#include "ops/quantized/fp8.h"

#include "ops/support.h"

namespace brrr {
namespace {

DType fp8_dtype(const InferContext& c) {
  const DType t = c.attr<DType>("dtype");
  if (!is_fp8(t)) c.fail("dtype must be f8e4m3 or f8e5m2; got {}", name_of(t));
  return t;
}

double largest_of(DType t) { return t == DType::f8e4m3 ? kLargestE4m3 : kLargestE5m2; }

OpDef quantize_scale_op() {
  OpDef d;
  d.name = "quantize_scale";
  d.derives_weights = true;
  d.doc =
      "y = the least power of two, 2^-100 at least, for which every |x| / y is in the range of "
      "{dtype} (f8e4m3: 448, f8e5m2: 57344); 1 where x is all zeros, NaN where an x is not finite. "
      "x: [...], y: [] f32";
  d.op_class = OpClass::normalisation;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 1);
    ops::expect_float(c, 0, "x");
    fp8_dtype(c);
    return std::vector<Type>{{DType::f32, Shape{}}};
  };
  d.evaluate = [](const EvalContext& c) {
    double top = 0;
    for (double x : c.in[0]->data)
      top = std::isnan(x) || std::isnan(top) ? NAN : std::max(top, std::fabs(x));
    c.out[0].data[0] = ops::fp8_scale(top, c.node.attrs.get<DType>("dtype"));
  };
  d.no_gradient = "it is constant almost everywhere";
  d.cost = [](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(n, in, ops::elements(in[0]));
  };
  d.samples = [] {
    std::vector<Sample> out;
    for (DType t : {DType::f8e4m3, DType::f8e5m2})
      for (const Shape& s : {Shape{3, 37}, Shape{2, 5, 64}, Shape{}, Shape{4099}})
        out.push_back({{ops::tensor(s, -9, 9)}, {{"dtype", t}}});
    return out;
  };
  return d;
}

OpDef quantize_op() {
  OpDef d;
  d.name = "quantize";
  d.code = "{0} * op_div(1.0f, {1})";
  d.derives_weights = true;
  d.doc =
      "y = x (1 / scale) as {dtype} (f8e4m3 or f8e5m2): to nearest even, the largest number where "
      "it is larger than that, NaN where it is NaN. Exact but for that rounding where the scale is "
      "a power of two. x, y: [...], scale: [] f32";
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 2);
    ops::expect_float(c, 0, "x");
    if (c.in[1].dtype != DType::f32 || c.in[1].shape.rank() != 0)
      c.fail("scale must be f32[]; got {}", c.in[1].str());
    return std::vector<Type>{{fp8_dtype(c), c.in[0].shape}};
  };
  d.evaluate = [](const EvalContext& c) {
    const DType t = c.node.results[0].dtype;
    const double inverse = 1 / c.in[1]->data[0];
    for (size_t i = 0; i < c.out[0].data.size(); ++i)
      c.out[0].data[i] = rounded_to(t, c.in[0]->data[i] * inverse);
  };
  d.no_gradient = "it is constant almost everywhere";
  d.cost = [](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(n, in, ops::elements(in[0]));
  };
  d.samples = [] {
    std::vector<Sample> out;
    for (DType t : {DType::f8e4m3, DType::f8e5m2})
      for (const Shape& s : {Shape{3, 37}, Shape{2, 5, 64}})
        out.push_back({{ops::tensor(s, -9, 9), ops::tensor({}, 0.25, 0.25)}, {{"dtype", t}}});
    return out;
  };
  return d;
}

OpDef scaled_matmul_op() {
  OpDef d;
  d.name = "scaled_matmul";
  d.product = {.is_scaled = true};
  d.doc =
      "y = scale_a scale_b a b^T + bias, products accumulate in f32; {fast_accumulation}: in fewer "
      "bits, where the target gains by that. a: [M, K], b: [N, K], each f8e4m3 or f8e5m2; scale_a, "
      "scale_b: [] f32; bias: [N] of any floating dtype, an operand where {bias}; y: [M, N] of "
      "{dtype}";
  d.op_class = OpClass::contraction;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, c.attr<bool>("bias") ? 5 : 4);
    for (size_t k : {size_t{0}, size_t{1}})
      if (!is_fp8(c.in[k].dtype) || c.in[k].shape.rank() != 2)
        c.fail("a and b must be matrices of 8 bits; got {}", c.in[k].str());
    for (size_t k : {size_t{2}, size_t{3}})
      if (c.in[k].dtype != DType::f32 || c.in[k].shape.rank() != 0)
        c.fail("scales must be f32[]; got {}", c.in[k].str());
    const Shape &a = c.in[0].shape, &b = c.in[1].shape;
    if (!(a[1] == b[1])) c.fail("the contracted sizes differ: a {}, b {}", a.str(), b.str());
    if (c.in.size() == 5) {
      ops::expect_float(c, 4, "bias");
      if (c.in[4].shape.rank() != 1 || !(c.in[4].shape[0] == b[0]))
        c.fail("bias must be [{}]; got {}", b[0].str(), c.in[4].str());
    }
    c.attr<bool>("fast_accumulation");
    const DType out = c.attr<DType>("dtype");
    if (!is_float(out) || is_fp8(out))
      c.fail("dtype must be 16 bits or wider; got {}", name_of(out));
    return std::vector<Type>{{out, Shape{a[0], b[0]}}};
  };
  // Any number of 8 bits is one of bf16's, and their products are exact in f32.
  d.decompose = [](const DecomposeContext& c) {
    const DType out = c.node.results[0].dtype, wide = out == DType::f64 ? out : DType::f32;
    Value y = matmul(cast(c.in[0], DType::bf16), cast(c.in[1], DType::bf16), false, true, wide);
    y = y * cast(c.in[2] * c.in[3], wide);
    if (c.in.size() == 5) y = y + cast(c.in[4], wide);
    return std::vector<Value>{cast(y, out)};
  };
  d.no_gradient = "it is made after differentiation";
  d.cost = [](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(
        n, in, 2 * static_cast<double>(in[0].shape.size(1)) * ops::elements(n.results[0]));
  };
  d.samples = [] {
    std::vector<Sample> out;
    auto add = [&](int64_t m, int64_t n, int64_t k, DType a, DType b, DType y, bool bias) {
      Sample s{{ops::tensor({m, k}, -4, 4, a), ops::tensor({n, k}, -4, 4, b),
                ops::tensor({}, 0.5, 0.5), ops::tensor({}, 0.25, 0.25)},
               {{"dtype", y}, {"fast_accumulation", false}, {"bias", bias}}};
      if (bias) s.in.push_back(ops::tensor({n}));
      out.push_back(std::move(s));
    };
    add(16, 32, 48, DType::f8e4m3, DType::f8e4m3, DType::bf16, true);
    add(64, 16, 80, DType::f8e5m2, DType::f8e4m3, DType::f32, false);
    add(32, 48, 16, DType::f8e4m3, DType::f8e5m2, DType::bf16, false);
    add(5, 7, 9, DType::f8e4m3, DType::f8e4m3, DType::f32, true);
    return out;
  };
  return d;
}

}  // namespace

Value quantize_scale(Value x, DType dtype) {
  return call1(Op::quantize_scale, {x}, {{"dtype", dtype}});
}
Value quantize(Value x, Value scale, DType dtype) {
  return call1(Op::quantize, {x, scale}, {{"dtype", dtype}});
}

namespace ops {

double fp8_scale(double top, DType t) {
  constexpr int kLeast = -100;  // as a power of two; its inverse is an f32, too
  if (!std::isfinite(top)) return NAN;
  if (top == 0) return 1;
  int exponent = std::max(kLeast, std::ilogb(top) - std::ilogb(largest_of(t)));
  if (std::ldexp(top, -exponent) > largest_of(t)) ++exponent;
  return std::ldexp(1.0, exponent);
}

std::vector<OpDef> fp8_ops() {
  std::vector<OpDef> list;
  list.push_back(quantize_scale_op());
  list.push_back(quantize_op());
  list.push_back(scaled_matmul_op());
  return list;
}

}  // namespace ops
}  // namespace brrr
