// Normalisation of each channel over the batch and the spatial axes (Ioffe and Szegedy 2015), as in
// training: by the statistics of the batch; and its derivative. In inference batch norm is a
// product and a sum by running statistics and needs no op.

#include "ops/support.h"

namespace brrr {
namespace {

bool has_channels_last(const Attrs& attrs) { return attrs.get_or<bool>("channels_last", false); }

int channel_axis(const Attrs& attrs, const Shape& x) {
  return has_channels_last(attrs) ? x.rank() - 1 : 1;
}

/// Every axis but that of the channels.
std::vector<int64_t> averaged_axes(const Attrs& attrs, const Shape& x) {
  std::vector<int64_t> axes;
  for (int64_t axis = 0; axis < x.rank(); ++axis)
    if (axis != channel_axis(attrs, x)) axes.push_back(axis);
  return axes;
}

/// Number of elements that a channel's statistics are of.
double count_of(const Attrs& attrs, const Shape& x) {
  return static_cast<double>(x.elements() / x.size(channel_axis(attrs, x)));
}

/// v: [C] -> [1, C, 1...] or [1, ..., C], which broadcasts to x.
Value along_channels(const Attrs& attrs, Value v, const Shape& x) {
  Shape shape;
  for (int axis = 0; axis < x.rank(); ++axis)
    shape.push_back(axis == channel_axis(attrs, x) ? x[axis] : Dim(1));
  return reshape(v, shape);
}

void check_images(const InferContext& c, size_t i, const char* what) {
  const Shape& x = c.in[i].shape;
  ops::expect_float(c, i, what);
  if (x.rank() < 2) c.fail("{} must be [N, C, spatial...]; got {}", what, c.in[i].str());
  for (int axis = 0; axis < x.rank(); ++axis)
    if (x[axis].is_symbol() || x.size(axis) < 1)
      c.fail("{} must have elements; got {}", what, c.in[i].str());
  if (!(c.attr<double>("eps") >= 0)) c.fail("eps must not be negative");
}

/// The type of weight, bias, statistics and their gradients.
Type channel_type(const InferContext& c, const Type& x) {
  return {ops::work_dtype(x.dtype), {x.shape[channel_axis(c.attrs, x.shape)]}};
}

void check_channel_parameter(const InferContext& c, size_t i, const char* what, const Type& x) {
  const Type wanted = channel_type(c, x);
  if (c.in[i] != wanted)
    c.fail("{} must be {}, one number for each channel of x {}; got {}", what, wanted.str(),
           x.str(), c.in[i].str());
}

struct NormSample {
  Shape x;
  bool channels_last = false;
  DType dtype = DType::f32;
};
const NormSample kNormSamples[] = {{{5, 3}},
                                   {{2, 3, 7}},
                                   {{2, 5, 4, 6}},
                                   {{2, 5, 4, 6}, true},
                                   {{3, 2, 3, 37}},
                                   {{3, 5, 2, 37}, true},
                                   {{2, 3, 2, 3, 4}},
                                   {{2, 4, 3, 5}, false, DType::bf16},
                                   {{2, 3, 5, 16}, true, DType::bf16}};

int64_t channels_of(const NormSample& s) { return s.x.size(s.channels_last ? s.x.rank() - 1 : 1); }

Attrs norm_attrs(double eps, bool channels_last) {
  Attrs attrs{{"eps", eps}};
  if (channels_last) attrs.set("channels_last", true);
  return attrs;
}

OpDef batch_norm_op() {
  OpDef d;
  d.name = "batch_norm";
  d.doc =
      "mean and variance (biased) of each channel over the batch and the spatial axes; y = (x - "
      "mean) / sqrt(variance + eps) weight + bias. x, y: [N, C, spatial...], with {channels_last} "
      "[N, spatial..., C]; weight, bias, mean, variance: [C] f32 (f64 where x is); statistics and "
      "the formula in f32, and y is rounded once";
  d.op_class = OpClass::normalisation;
  d.autocast_operands = 1;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 3);
    check_images(c, 0, "x");
    check_channel_parameter(c, 1, "weight", c.in[0]);
    check_channel_parameter(c, 2, "bias", c.in[0]);
    const Type statistic = channel_type(c, c.in[0]);
    return std::vector<Type>{c.in[0], statistic, statistic};
  };
  d.decompose = [](const DecomposeContext& c) {
    const Attrs& attrs = c.node.attrs;
    const Value x = cast(c.in[0], c.in[1].dtype());
    const auto axes = averaged_axes(attrs, x.shape());
    const Value mu = mean(x, axes);
    const Value centred = x - along_channels(attrs, mu, x.shape());
    const Value variance = mean(centred * centred, axes);
    const Value factor = rsqrt(variance + attrs.get<double>("eps")) * c.in[1];
    const Value y = centred * along_channels(attrs, factor, x.shape()) +
                    along_channels(attrs, c.in[2], x.shape());
    return std::vector<Value>{cast(y, c.in[0].dtype()), mu, variance};
  };
  d.vjp = [](VjpContext& c) {
    const Value x = c.operand(0), mu = c.result(1);
    const Attrs attrs = c.attrs();
    Value dx;
    if (c.has_grad(0)) {
      const Value in[] = {c.grad(0), x, c.operand(1), mu, c.result(2)};
      const auto out = call(Op::batch_norm_grad, in, attrs);
      dx = out[0];
      for (size_t i = 1; i < out.size(); ++i)
        if (c.wants(i)) c.set(i, out[i]);
    }
    if (!c.wants(0)) return;
    // The statistics too may be used: d mean / dx = 1 / M, d variance / dx = 2 (x - mean) / M.
    const double count = count_of(attrs, x.shape());
    const auto more = [&](Value term) {
      term = cast(broadcast_to(term, x.shape()), x.dtype());
      dx = dx.graph == nullptr ? term : dx + term;
    };
    if (c.has_grad(1)) more(along_channels(attrs, c.grad(1) / count, x.shape()));
    if (c.has_grad(2))
      more(along_channels(attrs, c.grad(2) * (2 / count), x.shape()) *
           (cast(x, mu.dtype()) - along_channels(attrs, mu, x.shape())));
    c.set(0, dx);
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(n, in, 7 * ops::elements(in[0]));
  };
  d.samples = [] {
    std::vector<Sample> out;
    for (const NormSample& s : kNormSamples) {
      const int64_t channels = channels_of(s);
      out.push_back({{ops::tensor(s.x, -1, 1, s.dtype), ops::tensor({channels}, 0.5, 1.5),
                      ops::tensor({channels})},
                     norm_attrs(1e-5, s.channels_last)});
    }
    return out;
  };
  d.in_place = {{0, 0}};
  return d;
}

OpDef batch_norm_grad_op() {
  OpDef d;
  d.name = "batch_norm_grad";
  d.is_gradient = true;
  d.doc =
      "With rstd = 1 / sqrt(variance + eps), h = (x - mean) rstd and M elements in each channel: "
      "dbias = sum dy, dweight = sum dy h, dx = weight rstd (dy - dbias / M - h dweight / M). dy, "
      "x, dx: [N, C, spatial...], with {channels_last} [N, spatial..., C]; weight, mean, variance, "
      "dweight, dbias: [C] f32 (f64 where x is); sums and the formula in f32, and dx is rounded "
      "once";
  d.op_class = OpClass::normalisation;
  d.autocast_operands = 3;
  d.infer = [](const InferContext& c) {
    ops::expect_operands(c, 5);
    check_images(c, 0, "dy");
    if (c.in[0] != c.in[1])
      c.fail("dy and x must agree; got {} and {}", c.in[0].str(), c.in[1].str());
    const char* const names[] = {"weight", "mean", "variance"};
    for (size_t i = 0; i < 3; ++i) check_channel_parameter(c, i + 2, names[i], c.in[0]);
    const Type sums = channel_type(c, c.in[0]);
    return std::vector<Type>{c.in[0], sums, sums};
  };
  d.decompose = [](const DecomposeContext& c) {
    const Attrs& attrs = c.node.attrs;
    const Value weight = c.in[2];
    const Shape& shape = c.in[0].shape();
    const auto channels = [&](Value v) { return along_channels(attrs, v, shape); };
    const Value dy = cast(c.in[0], weight.dtype()), x = cast(c.in[1], weight.dtype());
    const auto axes = averaged_axes(attrs, shape);
    const double count = count_of(attrs, shape);
    const Value rstd = rsqrt(c.in[4] + attrs.get<double>("eps"));
    const Value h = (x - channels(c.in[3])) * channels(rstd);
    const Value dbias = sum(dy, axes), dweight = sum(dy * h, axes);
    const Value dx =
        channels(weight * rstd) * (dy - channels(dbias / count) - h * channels(dweight / count));
    return std::vector<Value>{cast(dx, c.in[0].dtype()), dweight, dbias};
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    return ops::streaming_cost(n, in, 11 * ops::elements(in[0]));
  };
  d.samples = [] {
    std::vector<Sample> out;
    for (const NormSample& s : kNormSamples) {
      const int64_t channels = channels_of(s);
      out.push_back({{ops::tensor(s.x, -1, 1, s.dtype), ops::tensor(s.x, -1, 1, s.dtype),
                      ops::tensor({channels}, 0.5, 1.5), ops::tensor({channels}, -0.1, 0.1),
                      ops::tensor({channels}, 0.5, 1.5)},
                     norm_attrs(1e-5, s.channels_last)});
    }
    return out;
  };
  d.in_place = {{0, 0}, {0, 1}};
  return d;
}

}  // namespace

BatchNorm batch_norm(Value x, Value weight, Value bias, double eps, bool channels_last) {
  const Value in[] = {x, weight, bias};
  const auto out = call(Op::batch_norm, in, norm_attrs(eps, channels_last));
  return {out[0], out[1], out[2]};
}

namespace ops {

std::vector<OpDef> batch_norm_ops() { return {batch_norm_op(), batch_norm_grad_op()}; }

}  // namespace ops
}  // namespace brrr
