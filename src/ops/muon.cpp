// Muon (Jordan et al. 2024): momentum, the nearest orthogonal matrix by Newton-Schulz iterations,
// and a step along it. Three ops, so that the products in the middle are the target's own.

#include "ops/update.h"

namespace brrr::ops {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;  // the published quintic
constexpr double kLeastNorm = 1e-7;

OpDef muon_momentum() {
  OpDef d;
  d.name = "muon_momentum";
  d.doc =
      "Nesterov's momentum as Muon has it: m' = momentum m + (1-momentum) g with g = scale grad, u "
      "= momentum m' + (1-momentum) g. Operands: scale [] f32, all grads, all m; results: all u, "
      "all m'. A scale of NaN keeps m and makes u zero";
  d.op_class = OpClass::optimizer;
  d.no_gradient = "it consumes gradients";
  d.infer = [](const InferContext& c) {
    if (c.in.empty() || c.in.size() % 2 == 0)
      c.fail("takes a scalar and then 2 tensors for each parameter; got {} operands", c.in.size());
    if (c.in[0] != Type{DType::f32, {}}) c.fail("scale must be f32[]; got {}", c.in[0].str());
    const size_t n = c.in.size() / 2;
    const double momentum = c.attr<double>("momentum");
    if (!(momentum >= 0 && momentum < 1)) c.fail("momentum must be in [0, 1); got {}", momentum);
    std::vector<Type> out;
    for (size_t i = 0; i < 2 * n; ++i) {
      expect_float(c, 1 + i, "gradients and momenta");
      if (c.in[1 + i].shape != c.in[1 + i % n].shape)
        c.fail("gradient {} is {}, its momentum {}", i % n, c.in[1 + i % n].str(),
               c.in[1 + i].str());
      out.push_back({DType::f32, c.in[1 + i].shape});
    }
    return out;
  };
  d.evaluate = [](const EvalContext& c) {
    const size_t n = c.in.size() / 2;
    const double scale = c.in[0]->data[0], momentum = c.node.attrs.get<double>("momentum");
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < c.in[1 + i]->data.size(); ++j) {
        const double g = std::isnan(scale) ? 0 : scale * c.in[1 + i]->data[j];
        const double m = c.in[1 + n + i]->data[j];
        const double next = std::isnan(scale) ? m : momentum * m + (1 - momentum) * g;
        c.out[i].data[j] = std::isnan(scale) ? 0 : momentum * next + (1 - momentum) * g;
        c.out[n + i].data[j] = next;
      }
  };
  d.cost = [](const Node& node, std::span<const Type> in) {
    double count = 0;
    for (size_t i = 0; i < in.size() / 2; ++i) count += elements(in[1 + i]);
    return streaming_cost(node, in, 7 * count);
  };
  d.samples = [] {
    Sample s;
    s.in = {tensor({}, 0.1, 1)};
    for (int part = 0; part < 2; ++part)
      for (const Shape& shape : {Shape{3, 37}, Shape{5}, Shape{700, 101}})
        s.in.push_back(tensor(shape));
    s.attrs = {{"momentum", 0.95}};
    return std::vector<Sample>{std::move(s)};
  };
  d.in_place_of = [](const Node& node) {
    const auto n = static_cast<uint32_t>(node.operands.size() / 2);
    std::vector<OpDef::InPlace> pairs;
    for (uint32_t i = 0; i < 2 * n; ++i) pairs.push_back({i, 1 + i});
    return pairs;
  };
  return d;
}

OpDef newton_schulz() {
  OpDef d;
  d.name = "newton_schulz";
  d.doc =
      "y is near the orthogonal matrix that is nearest to x, its singular values between about 0.7 "
      "and 1.2: X = x / max(|x|, 1e-7) in {dtype}, then {steps} times A = X Xᵀ, X = 3.4445 X + "
      "(-4.7750 A + 2.0315 A A) X, on the shorter side of x. x, y: [R, C] f32";
  d.op_class = OpClass::optimizer;
  d.no_gradient = "it is a part of an optimizer";
  d.infer = [](const InferContext& c) {
    expect_operands(c, 1);
    if (c.in[0].dtype != DType::f32 || c.in[0].shape.rank() != 2)
      c.fail("x must be f32 with two axes; got {}", c.in[0].str());
    if (c.attr<int64_t>("steps") < 0) c.fail("steps must not be negative");
    if (!is_float(c.attr<DType>("dtype"))) c.fail("dtype must be a float");
    return std::vector<Type>{c.in[0]};
  };
  d.decompose = [](const DecomposeContext& c) {
    const Value x = c.in[0];
    const Value norm = maximum(global_norm(std::span(&x, 1)), scalar(c.graph, kLeastNorm));
    const DType dtype = c.node.attrs.get<DType>("dtype");
    Value y = x / norm;
    if (dtype != DType::f32) y = cast(y, dtype);
    const bool wide = x.shape().size(0) <= x.shape().size(1);
    for (int64_t i = 0; i < c.node.attrs.get<int64_t>("steps"); ++i) {
      const Value a = matmul(y, y, !wide, wide);
      const Value b = a * kB + matmul(a, a) * kC;
      y = y * kA + (wide ? matmul(b, y) : matmul(y, b));
    }
    return std::vector<Value>{dtype != DType::f32 ? cast(y, DType::f32) : y};
  };
  d.cost = [](const Node& node, std::span<const Type> in) {
    const double r = static_cast<double>(in[0].shape.size(0)),
                 c = static_cast<double>(in[0].shape.size(1)), s = std::min(r, c);
    const double steps = static_cast<double>(node.attrs.get<int64_t>("steps"));
    return streaming_cost(node, in, steps * (4 * s * r * c + 2 * s * s * s));
  };
  d.samples = [] {
    std::vector<Sample> out;
    for (const Shape& shape : {Shape{5, 9}, Shape{16, 7}, Shape{6, 6}})
      out.push_back({{tensor(shape)}, {{"steps", int64_t{5}}, {"dtype", DType::f32}}});
    return out;
  };
  return d;
}

UpdateRule muon() {
  UpdateRule r;
  r.name = "muon";
  r.doc =
      "A step of Muon along orthogonal matrices: param' = param - rate lr decay_i param - rate lr "
      "sqrt(max(1, out / in)) grad for parameters [in, out], where grad is newton_schulz's result. "
      "{rate} is the learning rate of these matrices in units of lr. Parameters that are shards "
      "are "
      "flat: {whole_shapes} then holds in and out of each whole matrix. Operands and results as of "
      "adamw, without states; t is not used";
  r.flops = 4;
  r.positive_or_zero = {"weight_decay", "rate"};
  r.sample = {{"rate", 20.0}};
  r.rule = [](const Attrs& a, double lr, double, double decay, const Shape& s) -> ElementRule {
    const double rate = lr * a.get<double>("rate"), step = rate * muon_scale(s);
    return [=](double& p, double g, double*) { p = p - rate * decay * p - step * g; };
  };
  return r;
}

}  // namespace

double muon_scale(const Shape& shape) {
  if (shape.rank() < 2 || shape.size(-2) == 0) return 1;
  return std::sqrt(
      std::max(1.0, static_cast<double>(shape.size(-1)) / static_cast<double>(shape.size(-2))));
}

std::vector<OpDef> muon_ops() { return {muon_momentum(), newton_schulz(), update_op(muon())}; }

}  // namespace brrr::ops
