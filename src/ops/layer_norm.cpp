// Layer normalisation (Ba et al. 2016) over the last axis, and its derivative.

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

}  // namespace

LayerNorm layer_norm(Value x, Value weight, Value bias, double eps) {
  const Value in[] = {x, weight, bias};
  const auto out = call("layer_norm", in, {{"eps", eps}});
  return {out[0], out[1], out[2]};
}

namespace ops {

std::vector<OpDef> layer_norm_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "layer_norm";
    d.row_operands = 1;
    d.doc =
        "mean, rstd = 1 / sqrt(variance + eps) over the last axis; y = (x - mean) rstd weight + "
        "bias. "
        "x, y: [..., C]; weight, bias: [C]; mean, rstd: [...]; statistics in f32";
    d.op_class = OpClass::normalisation;
    d.autocast = Autocast::fp32;
    d.infer = [](const InferContext& c) {
      expect_operands(c, 3);
      expect_float(c, 0, "x");
      if (c.in[0].shape.rank() < 1) c.fail("x needs an axis; got {}", c.in[0].str());
      check_row_parameter(c, 1, "weight");
      check_row_parameter(c, 2, "bias");
      if (!(c.attr<double>("eps") >= 0)) c.fail("eps must not be negative");
      const Type stat{c.in[0].dtype, leading(c.in[0].shape)};
      return std::vector<Type>{c.in[0], stat, stat};
    };
    d.decompose = [](const DecomposeContext& c) {
      Value x = c.in[0];
      Value mu = mean(x, {-1}, true);
      Value centred = x - mu;
      Value r = rsqrt(mean(centred * centred, {-1}, true) + c.node.attrs.get<double>("eps"));
      Value y = centred * r * c.in[1] + c.in[2];
      return std::vector<Value>{y, reshape(mu, leading(x.shape())), reshape(r, leading(x.shape()))};
    };
    d.vjp = [](VjpContext& c) {
      Value x = c.operand(0), dx;
      if (c.has_grad(0)) {
        const Value in[] = {c.grad(0), x, c.operand(1), c.result(1), c.result(2)};
        const auto out = call("layer_norm_grad", in);
        dx = out[0];
        for (size_t i : {size_t{1}, size_t{2}})
          if (c.wants(i)) c.set(i, out[i]);
      }
      if (!c.wants(0)) return;
      // The statistics too may be used: d mean / dx = 1/C, d rstd / dx = -rstd^3 (x - mean) / C.
      const double inverse = 1 / static_cast<double>(x.shape().size(-1));
      auto more = [&](Value term) { dx = dx.graph == nullptr ? term : dx + term; };
      if (c.has_grad(1)) more(broadcast_to(column(c.grad(1) * inverse), x.shape()));
      if (c.has_grad(2)) {
        Value r = c.result(2);
        more(column(c.grad(2) * (-inverse) * r * r * r) * (x - column(c.result(1))));
      }
      c.set(0, dx);
    };
    d.cost = [](const Node& n, std::span<const Type> in) {
      return streaming_cost(n, in, 7 * elements(in[0]));
    };
    d.samples = [] {
      std::vector<Sample> out;
      for (const Shape& s : kSampleShapes)
        out.push_back({{tensor(s), tensor({s[-1]}, 0.5, 1.5), tensor({s[-1]})}, {{"eps", 1e-5}}});
      return out;
    };
    d.in_place = {{0, 0}};
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "layer_norm_grad";
    d.row_operands = 2;
    d.is_gradient = true;
    d.doc =
        "With h = (x - mean) rstd and g = dy weight: dx = rstd (g - mean_C(g) - h mean_C(g h)), "
        "dweight = sum dy h, dbias = sum dy over all rows. dy, x, dx: [..., C]; weight, dweight, "
        "dbias: [C]; mean, rstd: [...]; sums in f32";
    d.op_class = OpClass::normalisation;
    d.autocast = Autocast::fp32;
    d.infer = [](const InferContext& c) {
      expect_operands(c, 5);
      expect_float(c, 0, "dy");
      if (c.in[0] != c.in[1] || c.in[0].shape.rank() < 1)
        c.fail("dy and x must agree; got {} and {}", c.in[0].str(), c.in[1].str());
      check_row_parameter(c, 2, "weight");
      for (size_t i : {size_t{3}, size_t{4}}) {
        expect_same_dtype(c, 0, i);
        if (c.in[i].shape != leading(c.in[0].shape))
          c.fail("mean and rstd must be {}; got {}", leading(c.in[0].shape).str(), c.in[i].str());
      }
      return std::vector<Type>{c.in[0], c.in[2], c.in[2]};
    };
    d.decompose = [](const DecomposeContext& c) {
      Value dy = c.in[0], x = c.in[1], weight = c.in[2], r = column(c.in[4]);
      Value h = (x - column(c.in[3])) * r;
      Value g = dy * weight;
      Value dx = r * (g - mean(g, {-1}, true) - h * mean(g * h, {-1}, true));
      const auto rows = leading_axes(x.shape());
      return std::vector<Value>{dx, sum(dy * h, rows), sum(dy, rows)};
    };
    d.cost = [](const Node& n, std::span<const Type> in) {
      return streaming_cost(n, in, 14 * elements(in[0]));
    };
    d.samples = [] {
      std::vector<Sample> out;
      for (const Shape& s : kSampleShapes)
        out.push_back({{tensor(s), tensor(s), tensor({s[-1]}, 0.5, 1.5),
                        tensor(leading(s), -0.1, 0.1), tensor(leading(s), 1, 2)},
                       {}});
      return out;
    };
    d.in_place = {{0, 0}, {0, 1}};
    list.push_back(std::move(d));
  }
  return list;
}

}  // namespace ops
}  // namespace brrr
