// Normalisation of the last axis: layer_norm (Ba et al. 2016), and rms_norm (Zhang and Sennrich
// 2019), which neither centres nor shifts; and their derivatives.

#include "ops/support.h"

namespace brrr {
namespace {

void check_row_parameter(const InferContext& c, size_t i, const char* what) {
  const Shape &x = c.in[0].shape, &p = c.in[i].shape;
  if (p.rank() != 1 || !(p[0] == x[-1]))
    c.fail("{} must have shape [{}] as the last axis of x {}; got {}", what, x[-1].str(), x.str(),
           p.str());
  ops::expect_same_dtype(c, 0, i);
}

std::vector<int64_t> leading_axes(const Shape& x) {
  std::vector<int64_t> axes(static_cast<size_t>(x.rank() - 1));
  std::iota(axes.begin(), axes.end(), int64_t{0});
  return axes;
}

const Shape kSampleShapes[] = {{3, 37}, {2, 5, 64}, {4, 300}, {3, 1, 8}};

/// Ports of y's statistics: of the mean, where rows are centred, and of rstd.
constexpr uint32_t kMean = 1;
uint32_t rstd_port(bool centred) { return centred ? 2 : 1; }

OpDef norm_op(bool centred) {
  using namespace ops;
  OpDef d;
  d.name = centred ? "layer_norm" : "rms_norm";
  d.row_operands = 1;
  d.doc = centred
              ? "mean, rstd = 1 / sqrt(variance + eps) over the last axis; y = (x - mean) rstd "
                "weight + bias. x, y: [..., C]; weight, bias: [C]; mean, rstd: [...]; "
                "statistics in f32"
              : "rstd = 1 / sqrt(mean of x^2 + eps) over the last axis; y = x rstd weight. x, y: "
                "[..., C]; weight: [C]; rstd: [...]; statistics in f32, and y is rounded once";
  d.op_class = OpClass::normalisation;
  d.autocast = Autocast::fp32;
  d.infer = [centred](const InferContext& c) {
    expect_operands(c, centred ? 3 : 2);
    expect_float(c, 0, "x");
    if (c.in[0].shape.rank() < 1) c.fail("x needs an axis; got {}", c.in[0].str());
    check_row_parameter(c, 1, "weight");
    if (centred) check_row_parameter(c, 2, "bias");
    if (!(c.attr<double>("eps") >= 0)) c.fail("eps must not be negative");
    std::vector<Type> results{c.in[0]};
    results.resize(centred ? 3 : 2, {c.in[0].dtype, leading(c.in[0].shape)});
    return results;
  };
  d.decompose = [centred](const DecomposeContext& c) {
    Value x = c.in[0], mu;
    if (centred) mu = mean(x, {-1}, true);
    Value h = centred ? x - mu : x;
    Value r = rsqrt(mean(h * h, {-1}, true) + c.node.attrs.get<double>("eps"));
    Value y = h * r * c.in[1];
    std::vector<Value> results{centred ? y + c.in[2] : y};
    if (centred) results.push_back(reshape(mu, leading(x.shape())));
    results.push_back(reshape(r, leading(x.shape())));
    return results;
  };
  d.vjp = [centred](VjpContext& c) {
    const uint32_t rstd = rstd_port(centred);
    Value x = c.operand(0), dx;
    if (c.has_grad(0)) {
      std::vector<Value> in{c.grad(0), x, c.operand(1)};
      for (uint32_t port = 1; port <= rstd; ++port) in.push_back(c.result(port));
      const auto out = call(centred ? Op::layer_norm_grad : Op::rms_norm_grad, in);
      dx = out[0];
      for (size_t i = 1; i < out.size(); ++i)
        if (c.wants(i)) c.set(i, out[i]);
    }
    if (!c.wants(0)) return;
    // The statistics too may be used: d mean / dx = 1/C, d rstd / dx = -rstd^3 (x - mean) / C.
    const double inverse = 1 / static_cast<double>(x.shape().size(-1));
    auto more = [&](Value term) { dx = dx.graph == nullptr ? term : dx + term; };
    if (centred && c.has_grad(kMean))
      more(broadcast_to(column(c.grad(kMean) * inverse), x.shape()));
    if (c.has_grad(rstd)) {
      Value r = c.result(rstd);
      more(column(c.grad(rstd) * (-inverse) * r * r * r) *
           (centred ? x - column(c.result(kMean)) : x));
    }
    c.set(0, dx);
  };
  d.cost = [centred](const Node& n, std::span<const Type> in) {
    return streaming_cost(n, in, (centred ? 7 : 4) * elements(in[0]));
  };
  d.samples = [centred] {
    std::vector<Sample> out;
    for (const Shape& s : kSampleShapes) {
      Sample sample{{tensor(s), tensor({s[-1]}, 0.5, 1.5)}, {{"eps", 1e-5}}};
      if (centred) sample.in.push_back(tensor({s[-1]}));
      out.push_back(std::move(sample));
    }
    return out;
  };
  d.in_place = {{0, 0}};
  return d;
}

OpDef norm_grad_op(bool centred) {
  using namespace ops;
  OpDef d;
  d.name = centred ? "layer_norm_grad" : "rms_norm_grad";
  d.row_operands = 2;
  d.is_gradient = true;
  d.doc =
      centred
          ? "With h = (x - mean) rstd and g = dy weight: dx = rstd (g - mean_C(g) - h mean_C(g "
            "h)), dweight = sum dy h, dbias = sum dy over all rows. dy, x, dx: [..., C]; weight, "
            "dweight, dbias: [C]; mean, rstd: [...]; sums in f32"
          : "With h = x rstd and g = dy weight: dx = rstd (g - h mean_C(g h)), dweight = sum dy "
            "h over all rows. dy, x, dx: [..., C]; weight, dweight: [C]; rstd: [...]; sums in f32";
  d.op_class = OpClass::normalisation;
  d.autocast = Autocast::fp32;
  d.infer = [centred](const InferContext& c) {
    expect_operands(c, centred ? 5 : 4);
    expect_float(c, 0, "dy");
    if (c.in[0] != c.in[1] || c.in[0].shape.rank() < 1)
      c.fail("dy and x must agree; got {} and {}", c.in[0].str(), c.in[1].str());
    check_row_parameter(c, 2, "weight");
    for (size_t i = 3; i < c.in.size(); ++i) {
      expect_same_dtype(c, 0, i);
      if (c.in[i].shape != leading(c.in[0].shape))
        c.fail("{} must be {}; got {}", centred ? "mean and rstd" : "rstd",
               leading(c.in[0].shape).str(), c.in[i].str());
    }
    std::vector<Type> results{c.in[0]};
    results.resize(centred ? 3 : 2, c.in[2]);
    return results;
  };
  d.decompose = [centred](const DecomposeContext& c) {
    Value dy = c.in[0], x = c.in[1], weight = c.in[2], r = column(c.in.back());
    Value h = (centred ? x - column(c.in[3]) : x) * r;
    Value g = dy * weight;
    Value dx = r * ((centred ? g - mean(g, {-1}, true) : g) - h * mean(g * h, {-1}, true));
    const auto rows = leading_axes(x.shape());
    std::vector<Value> results{dx, sum(dy * h, rows)};
    if (centred) results.push_back(sum(dy, rows));
    return results;
  };
  d.cost = [centred](const Node& n, std::span<const Type> in) {
    return streaming_cost(n, in, (centred ? 14 : 9) * elements(in[0]));
  };
  d.samples = [centred] {
    std::vector<Sample> out;
    for (const Shape& s : kSampleShapes) {
      Sample sample{{tensor(s), tensor(s), tensor({s[-1]}, 0.5, 1.5)}, {}};
      if (centred) sample.in.push_back(tensor(leading(s), -0.1, 0.1));
      sample.in.push_back(tensor(leading(s), 1, 2));
      out.push_back(std::move(sample));
    }
    return out;
  };
  d.in_place = {{0, 0}, {0, 1}};
  return d;
}

}  // namespace

LayerNorm layer_norm(Value x, Value weight, Value bias, double eps) {
  const Value in[] = {x, weight, bias};
  const auto out = call(Op::layer_norm, in, {{"eps", eps}});
  return {out[0], out[1], out[2]};
}

RmsNorm rms_norm(Value x, Value weight, double eps) {
  const Value in[] = {x, weight};
  const auto out = call(Op::rms_norm, in, {{"eps", eps}});
  return {out[0], out[1]};
}

bool is_centred(const Node& norm) { return is(norm, Op::layer_norm, Op::layer_norm_grad); }

namespace ops {

std::vector<OpDef> layer_norm_ops() {
  return {norm_op(true), norm_grad_op(true), norm_op(false), norm_grad_op(false)};
}

}  // namespace ops
}  // namespace brrr
