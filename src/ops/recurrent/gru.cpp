// gru and gru_grad.

#include "ops/backpropagate.h"
#include "ops/op.h"
#include "ops/recurrent/recurrent_support.h"

namespace brrr {

GruResults gru(Value gates, Value weight, Value bias, Value hidden, bool reverse) {
  const Value in[] = {gates, weight, bias, hidden};
  const auto out = call(Op::gru, in, {{"reverse", reverse}});
  return {out[0], out[1], out[2]};
}

namespace ops {
namespace {

// Operands of gru.
enum : size_t { kGruGates, kGruWeight, kGruBias, kGruHidden };
// Results of gru.
enum : uint32_t { kGruOutputs, kGruLastHidden, kGruActivations };

std::vector<Type> infer_gru(const InferContext& c) {
  expect_operands(c, 4);
  if (c.in[kGruHidden].shape.rank() != 2)
    c.fail("hidden must be [batch, width]; got {}", c.in[kGruHidden].str());
  const RecurrentSizes f = check_recurrent(c, 3, "gates", c.in[kGruHidden].shape.size(1));
  expect_shape(c, kGruWeight, "weight", {3 * f.width, f.width});
  expect_shape(c, kGruBias, "bias", {f.width});
  expect_shape(c, kGruHidden, "hidden", {f.batch, f.width});
  const DType t = c.in[0].dtype;
  return {{t, {f.steps, f.batch, f.width}},
          {t, {f.batch, f.width}},
          {t, {f.steps, f.batch, 4 * f.width}}};
}

std::vector<Value> decompose_gru(const DecomposeContext& c) {
  const int64_t h = c.in[kGruHidden].shape().size(1);
  const auto step = [h](const std::vector<Value>& rows, const std::vector<Value>& states,
                        const std::vector<Value>& constants) {
    const Value before = states[0], product = matmul(before, constants[0], false, true);
    const Value rz = sigmoid(gate(rows[0], 0, h, 2) + gate(product, 0, h, 2));
    const Value reset = gate(rz, 0, h), update = gate(rz, 1, h),
                seen = gate(product, 2, h) + constants[1];
    const Value candidate = tanh(gate(rows[0], 2, h) + reset * seen);
    const Value hidden = candidate + update * (before - candidate);
    return std::vector{hidden, hidden, concat(std::vector{rz, candidate, seen}, -1)};
  };
  const Recurrence ran =
      run_steps({c.in[kGruGates]}, {c.in[kGruHidden]}, {c.in[kGruWeight], c.in[kGruBias]},
                c.node.attrs.get<bool>("reverse"), step);
  return {ran.rows[0], ran.states[0], ran.rows[1]};
}

void differentiate_gru(VjpContext& c) {
  if (c.has_grad(kGruActivations)) return differentiate_decomposition(c);
  const Value in[] = {c.result(kGruActivations),
                      c.result(kGruOutputs),
                      c.operand(kGruHidden),
                      c.operand(kGruWeight),
                      gradient_or_zeros(c, kGruOutputs),
                      gradient_or_zeros(c, kGruLastHidden)};
  const bool reverse = c.attrs().get<bool>("reverse");
  const auto out = call(Op::gru_grad, in, {{"reverse", reverse}});
  const int64_t h = c.operand(kGruHidden).shape().size(1);
  c.set(kGruGates, out[0]);
  c.set(kGruHidden, out[2]);
  if (c.wants(kGruWeight))
    c.set(kGruWeight,
          recurrent_weight_gradient(out[1], c.result(kGruOutputs), c.operand(kGruHidden), reverse));
  if (c.wants(kGruBias)) c.set(kGruBias, sum(gate(out[1], 2, h), {0, 1}));
}

// Operands of gru_grad.
enum : size_t { kOfGates, kOfOutputs, kFirstHidden, kOfGruWeight, kDGruOutputs, kDGruHidden };

std::vector<Type> infer_gru_grad(const InferContext& c) {
  expect_operands(c, 6);
  if (c.in[kFirstHidden].shape.rank() != 2)
    c.fail("hidden must be [batch, width]; got {}", c.in[kFirstHidden].str());
  const RecurrentSizes f = check_recurrent(c, 4, "activations", c.in[kFirstHidden].shape.size(1));
  const Shape state{f.batch, f.width}, rows{f.steps, f.batch, f.width};
  expect_shape(c, kOfOutputs, "outputs", rows);
  expect_shape(c, kFirstHidden, "hidden", state);
  expect_shape(c, kOfGruWeight, "weight", {3 * f.width, f.width});
  expect_shape(c, kDGruOutputs, "the gradient of outputs", rows);
  expect_shape(c, kDGruHidden, "the gradient of hidden", state);
  const Type gates{c.in[0].dtype, {f.steps, f.batch, 3 * f.width}};
  return {gates, gates, {c.in[0].dtype, state}};
}

std::vector<Value> decompose_gru_grad(const DecomposeContext& c) {
  const bool reverse = c.node.attrs.get<bool>("reverse");
  const int64_t h = c.in[kFirstHidden].shape().size(1);
  const auto step = [h](const std::vector<Value>& rows, const std::vector<Value>& states,
                        const std::vector<Value>& constants) {
    const Value reset = gate(rows[0], 0, h), update = gate(rows[0], 1, h),
                candidate = gate(rows[0], 2, h), seen = gate(rows[0], 3, h), before = rows[1];
    const Value d = states[0] + rows[2];
    const Value d_candidate = d * (1.0 - update) * (1.0 - candidate * candidate);
    const Value d_rz = concat(std::vector{d_candidate * seen * reset * (1.0 - reset),
                                          d * (before - candidate) * update * (1.0 - update)},
                              -1);
    const Value d_product = concat(std::vector{d_rz, d_candidate * reset}, -1);
    return std::vector{d * update + matmul(d_product, constants[0]),
                       concat(std::vector{d_rz, d_candidate}, -1), d_product};
  };
  const Recurrence ran =
      run_steps({c.in[kOfGates], states_before_steps(c.in[kOfOutputs], c.in[kFirstHidden], reverse),
                 c.in[kDGruOutputs]},
                {c.in[kDGruHidden]}, {c.in[kOfGruWeight]}, !reverse, step);
  return {ran.rows[0], ran.rows[1], ran.states[0]};
}

std::vector<Sample> gru_samples() {
  std::vector<Sample> samples;
  for (const auto [t, b, h, reverse] : kRecurrentSamples)
    samples.push_back(
        {{tensor({t, b, 3 * h}, -2, 2), tensor({3 * h, h}), tensor({h}), tensor({b, h})},
         {{"reverse", reverse}}});
  return samples;
}

std::vector<Sample> gru_grad_samples() {
  std::vector<Sample> samples;
  for (const auto [t, b, h, reverse] : kRecurrentSamples)
    samples.push_back({{tensor({t, b, 4 * h}, 0.1, 0.9), tensor({t, b, h}), tensor({b, h}),
                        tensor({3 * h, h}), tensor({t, b, h}), tensor({b, h})},
                       {{"reverse", reverse}}});
  return samples;
}

}  // namespace

std::vector<OpDef> gru_ops() {
  OpDef forward;
  forward.name = "gru";
  forward.doc =
      "The steps of a GRU: r, z = sigmoid of gates[t] + hidden weight^T; n = tanh(gates[t] + r "
      "(hidden weight^T + bias)); hidden = (1 - z) n + z hidden. gates: [T, B, 3 H] in the order "
      "r, z, n, what the input gives, with biases; weight: [3 H, H]; bias: [H]; hidden: [B, H]. "
      "Results: outputs, the hidden state of each step, [T, B, H]; the last hidden, [B, H]; and "
      "for the derivative r, z, n and what r multiplies, [T, B, 4 H]. With {reverse} the steps "
      "run from T - 1 to 0. Sums in f32";
  forward.op_class = OpClass::control;
  forward.autocast = Autocast::fp32;
  forward.infer = infer_gru;
  forward.decompose = decompose_gru;
  forward.vjp = differentiate_gru;
  forward.cost = [](const Node& n, std::span<const Type> in) {
    return recurrent_cost(n, in, 3, 25);
  };
  forward.samples = gru_samples;

  OpDef backward;
  backward.name = "gru_grad";
  backward.is_gradient = true;
  backward.doc =
      "The gradients of gru's gates and of its products with the state, the bias included, both "
      "[T, B, 3 H], and of hidden, [B, H]. Operands: gru's activations, [T, B, 4 H], and outputs, "
      "[T, B, H]; its first hidden, [B, H]; weight: [3 H, H]; the gradients of its outputs, "
      "[T, B, H], and of its last hidden, [B, H]. Sums in f32";
  backward.op_class = OpClass::control;
  backward.autocast = Autocast::fp32;
  backward.infer = infer_gru_grad;
  backward.decompose = decompose_gru_grad;
  backward.cost = [](const Node& n, std::span<const Type> in) {
    return recurrent_cost(n, in, 3, 40);
  };
  backward.samples = gru_grad_samples;
  return {std::move(forward), std::move(backward)};
}

}  // namespace ops
}  // namespace brrr
