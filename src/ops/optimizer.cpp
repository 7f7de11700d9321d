// What an optimizer step does to memory: one node over all tensors, so that a kernel can make one
// pass.

#include "ops/support.h"

namespace brrr {
namespace {

constexpr size_t kAdamwScalars = 3;  // learning rate, step, gradient scale

size_t tensors_of(const InferContext& c) {
  if (c.in.size() < kAdamwScalars || (c.in.size() - kAdamwScalars) % 4 != 0)
    c.fail("takes 3 scalars and then 4 tensors for each parameter; got {} operands", c.in.size());
  return (c.in.size() - kAdamwScalars) / 4;
}

}  // namespace

Value global_norm(std::span<const Value> tensors) { return call("global_norm", tensors)[0]; }

namespace ops {

std::vector<OpDef> optimizer_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "global_norm";
    d.doc =
        "y = sqrt(sum of x^2 over all elements of all operands). x: any shapes; y: []; f32 or "
        "wider";
    d.op_class = OpClass::optimizer;
    d.no_gradient = "it measures gradients";
    d.infer = [](const InferContext& c) {
      if (c.in.empty()) c.fail("needs an operand");
      for (size_t i = 0; i < c.in.size(); ++i) expect_float(c, i, "every operand");
      return std::vector<Type>{{DType::f32, {}}};
    };
    d.evaluate = [](const EvalContext& c) {
      double total = 0;
      for (const RefTensor* x : c.in)
        for (double v : x->data) total += v * v;
      c.out[0].data[0] = std::sqrt(total);
    };
    d.cost = [](const Node& n, std::span<const Type> in) {
      double count = 0;
      for (const Type& t : in) count += elements(t);
      return streaming_cost(n, in, 2 * count);
    };
    d.samples = [] {
      return std::vector<Sample>{
          {{tensor({3, 37})}, {}},
          {{tensor({5}), tensor({}), tensor({2, 3, 4}), tensor({70000})}, {}}};
    };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "adamw";
    d.doc =
        "Decoupled weight decay (Loshchilov and Hutter 2019, alg. 2), for each parameter i with g "
        "= "
        "scale grad: m' = beta1 m + (1-beta1) g; v' = beta2 v + (1-beta2) g^2; param' = param - lr "
        "decay_i param - lr (m' / (1-beta1^t)) / (sqrt(v' / (1-beta2^t)) + eps). Operands: lr [] "
        "f32, "
        "t [] i32 (from 1), scale [] f32, then all params, all grads, all m, all v; results: all "
        "params, all m, all v. {weight_decay} applies where {decays} is 1. A scale of NaN changes "
        "nothing: the gradients were not finite";
    d.op_class = OpClass::optimizer;
    d.no_gradient = "it consumes gradients";
    d.infer = [](const InferContext& c) {
      const size_t n = tensors_of(c);
      if (c.in[0] != Type{DType::f32, {}} || c.in[1] != Type{DType::i32, {}} ||
          c.in[2] != Type{DType::f32, {}})
        c.fail("lr, t and scale must be f32[], i32[] and f32[]; got {}, {} and {}", c.in[0].str(),
               c.in[1].str(), c.in[2].str());
      for (size_t i = kAdamwScalars; i < c.in.size(); ++i)
        expect_float(c, i, "parameters, gradients and moments");
      if (c.attr<std::vector<int64_t>>("decays").size() != n)
        c.fail("decays must have one entry for each of {} parameters", n);
      for (const char* name : {"beta1", "beta2"})
        if (!(c.attr<double>(name) >= 0 && c.attr<double>(name) < 1))
          c.fail("{} must be in [0, 1); got {}", name, c.attr<double>(name));
      if (!(c.attr<double>("eps") >= 0)) c.fail("eps must not be negative");
      c.attr<double>("weight_decay");
      std::vector<Type> out;
      for (size_t part : {size_t{0}, size_t{2}, size_t{3}})
        for (size_t i = 0; i < n; ++i) out.push_back(c.in[kAdamwScalars + part * n + i]);
      for (size_t i = 0; i < n; ++i)
        for (size_t part = 1; part < 4; ++part)
          if (c.in[kAdamwScalars + part * n + i].shape != c.in[kAdamwScalars + i].shape)
            c.fail("parameter {} is {}, its {} {}", i, c.in[kAdamwScalars + i].str(),
                   part == 1 ? "gradient" : "moment", c.in[kAdamwScalars + part * n + i].str());
      return out;
    };
    d.evaluate = [](const EvalContext& c) {
      const Attrs& a = c.node.attrs;
      const size_t n = (c.in.size() - kAdamwScalars) / 4;
      const double lr = c.in[0]->data[0], t = c.in[1]->data[0], scale = c.in[2]->data[0];
      const double b1 = a.get<double>("beta1"), b2 = a.get<double>("beta2"),
                   eps = a.get<double>("eps");
      const auto& decays = a.get<std::vector<int64_t>>("decays");
      const bool keep = std::isnan(scale);
      const double c1 = 1 - std::pow(b1, t), c2 = 1 - std::pow(b2, t);
      for (size_t i = 0; i < n; ++i) {
        const double decay = decays[i] ? a.get<double>("weight_decay") : 0;
        const auto& p = c.in[kAdamwScalars + i]->data;
        for (size_t j = 0; j < p.size(); ++j) {
          const double g = scale * c.in[kAdamwScalars + n + i]->data[j];
          const double m = b1 * c.in[kAdamwScalars + 2 * n + i]->data[j] + (1 - b1) * g;
          const double v = b2 * c.in[kAdamwScalars + 3 * n + i]->data[j] + (1 - b2) * g * g;
          const double moved = p[j] - lr * decay * p[j] - lr * (m / c1) / (std::sqrt(v / c2) + eps);
          c.out[i].data[j] = keep ? p[j] : moved;
          c.out[n + i].data[j] = keep ? c.in[kAdamwScalars + 2 * n + i]->data[j] : m;
          c.out[2 * n + i].data[j] = keep ? c.in[kAdamwScalars + 3 * n + i]->data[j] : v;
        }
      }
    };
    d.cost = [](const Node& node, std::span<const Type> in) {
      double count = 0;
      for (size_t i = 0; i < (in.size() - kAdamwScalars) / 4; ++i)
        count += elements(in[kAdamwScalars + i]);
      return streaming_cost(node, in, 15 * count);
    };
    d.samples = [] {
      std::vector<Sample> out;
      for (double decay : {0.0, 0.1}) {
        Sample s;
        s.in = {tensor({}, 1e-3, 1e-2), tensor({}, 1, 9, DType::i32), tensor({}, 0.1, 1)};
        const Shape shapes[] = {{3, 37}, {5}, {700, 101}};
        for (int part = 0; part < 4; ++part)
          for (const Shape& shape : shapes) s.in.push_back(tensor(shape, part == 3 ? 0.1 : -1, 1));
        s.attrs = {{"beta1", 0.9},
                   {"beta2", 0.95},
                   {"eps", 1e-8},
                   {"weight_decay", decay},
                   {"decays", std::vector<int64_t>{1, 0, 1}}};
        out.push_back(std::move(s));
      }
      return out;
    };
    d.in_place_of = [](const Node& node) {
      const uint32_t n = static_cast<uint32_t>((node.operands.size() - kAdamwScalars) / 4);
      std::vector<OpDef::InPlace> pairs;
      for (uint32_t i = 0; i < n; ++i)
        for (auto [result, part] : {std::pair{0u, 0u}, std::pair{1u, 2u}, std::pair{2u, 3u}})
          pairs.push_back({result * n + i, static_cast<uint32_t>(kAdamwScalars) + part * n + i});
      return pairs;
    };
    list.push_back(std::move(d));
  }
  return list;
}

}  // namespace ops
}  // namespace brrr
