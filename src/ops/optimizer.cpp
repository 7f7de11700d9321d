// What an optimizer step does to memory: one node over all tensors, so that a kernel can make one
// pass. The element-wise optimizers; those of more than one element have files of their own.

#include "ops/op.h"
#include "ops/update.h"

namespace brrr {

Value global_norm(std::span<const Value> tensors) { return call(Op::global_norm, tensors)[0]; }

namespace ops {

namespace {

UpdateRule adamw() {
  UpdateRule r;
  r.name = "adamw";
  r.doc =
      "Decoupled weight decay (Loshchilov and Hutter 2019, alg. 2), for each parameter i with g = "
      "scale grad: m' = beta1 m + (1-beta1) g; v' = beta2 v + (1-beta2) g^2; param' = param - lr "
      "decay_i param - lr (m' / (1-beta1^t)) / (sqrt(v' / (1-beta2^t)) + eps). Operands: lr [] "
      "f32, t [] i32 (from 1), scale [] f32, then all params, all grads, all m, all v; results: "
      "all params, all m, all v. {weight_decay} applies where {decays} is 1. A scale of NaN "
      "changes nothing: the gradients were not finite. Parameters are f32, or bf16: then a key "
      "i32[2] follows scale, and param' is rounded up or down at random, element j of parameter i "
      "by element j of the 16-bit stream {stream} + i. With {copies}, copies of param' rounded to "
      "{copy_dtype} follow the states: for each parameter those whose numbers are summed there, 1 "
      "in rows, 2 in panels, 4 in transposed panels (base/storage.h)";
  r.states = 2;
  r.flops = 15;
  r.shares = {"beta1", "beta2"};
  r.positive_or_zero = {"eps", "weight_decay"};
  r.sample = {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}};
  r.rule = [](const Attrs& a, double lr, double t, double decay, const Shape&) -> ElementRule {
    const double b1 = a.get<double>("beta1"), b2 = a.get<double>("beta2");
    const double c1 = 1 - std::pow(b1, t), c2 = 1 - std::pow(b2, t), eps = a.get<double>("eps");
    return [=](double& p, double g, double* s) {
      s[0] = b1 * s[0] + (1 - b1) * g;
      s[1] = b2 * s[1] + (1 - b2) * g * g;
      p = p - lr * decay * p - lr * (s[0] / c1) / (std::sqrt(s[1] / c2) + eps);
    };
  };
  return r;
}

UpdateRule sgd() {
  UpdateRule r;
  r.name = "sgd";
  r.doc =
      "Gradient descent with momentum, as torch.optim.SGD: g = scale grad + decay_i param; m' = "
      "momentum m + g; param' = param - lr m'. Operands and results as of adamw, with one state "
      "m; t is not used";
  r.states = 1;
  r.flops = 7;
  r.shares = {"momentum"};
  r.sample = {{"momentum", 0.9}};
  r.rule = [](const Attrs& a, double lr, double, double decay, const Shape&) -> ElementRule {
    const double momentum = a.get<double>("momentum");
    return [=](double& p, double g, double* s) {
      s[0] = momentum * s[0] + g + decay * p;
      p -= lr * s[0];
    };
  };
  return r;
}

UpdateRule lion() {
  UpdateRule r;
  r.name = "lion";
  r.doc =
      "Sign updates (Chen et al. 2023, alg. 2), g = scale grad: param' = param - lr decay_i param "
      "- lr sign(beta1 m + (1-beta1) g); m' = beta2 m + (1-beta2) g. Operands and results as of "
      "adamw, with one state m; t is not used";
  r.states = 1;
  r.flops = 9;
  r.shares = {"beta1", "beta2"};
  r.sample = {{"beta1", 0.9}, {"beta2", 0.99}};
  r.rule = [](const Attrs& a, double lr, double, double decay, const Shape&) -> ElementRule {
    const double b1 = a.get<double>("beta1"), b2 = a.get<double>("beta2");
    return [=](double& p, double g, double* s) {
      const double c = b1 * s[0] + (1 - b1) * g;
      s[0] = b2 * s[0] + (1 - b2) * g;
      p = p - lr * decay * p - lr * static_cast<double>((c > 0) - (c < 0));
    };
  };
  return r;
}

}  // namespace

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
      return streaming_cost(n, in, 2 * elements(in));
    };
    d.samples = [] {
      return std::vector<Sample>{
          {{tensor({3, 37})}, {}},
          {{tensor({5}), tensor({}), tensor({2, 3, 4}), tensor({70000})}, {}}};
    };
    list.push_back(std::move(d));
  }
  list.push_back(update_op(adamw()));
  list.push_back(update_op(sgd()));
  list.push_back(update_op(lion()));
  return list;
}

}  // namespace ops
}  // namespace brrr
