// lstm and lstm_grad.

#include "ops/backpropagate.h"
#include "ops/op.h"
#include "ops/recurrent/recurrent_support.h"

namespace brrr {

LstmResults lstm(Value gates, Value weight, Value hidden, Value cell, bool reverse) {
  const Value in[] = {gates, weight, hidden, cell};
  const auto out = call(Op::lstm, in, {{"reverse", reverse}});
  return {out[0], out[1], out[2], out[3], out[4]};
}

namespace ops {
namespace {

// Operands of lstm.
enum : size_t { kGates, kWeight, kHidden, kCell };
// Results of lstm.
enum : uint32_t { kOutputs, kLastHidden, kLastCell, kActivations, kCells };

RecurrentSizes lstm_form(const InferContext& c, const char* what, size_t hidden) {
  if (c.in[hidden].shape.rank() != 2)
    c.fail("hidden must be [batch, width]; got {}", c.in[hidden].str());
  return check_recurrent(c, 4, what, c.in[hidden].shape.size(1));
}

std::vector<Type> infer_lstm(const InferContext& c) {
  expect_operands(c, 4);
  const RecurrentSizes f = lstm_form(c, "gates", kHidden);
  const Shape state{f.batch, f.width};
  expect_shape(c, kWeight, "weight", {Dim(4 * f.width), Dim(f.width)});
  expect_shape(c, kHidden, "hidden", state);
  expect_shape(c, kCell, "cell", state);
  const DType t = c.in[0].dtype;
  const Shape rows{f.steps, f.batch, f.width};
  return {{t, rows}, {t, state}, {t, state}, c.in[0], {t, rows}};
}

std::vector<Value> decompose_lstm(const DecomposeContext& c) {
  const int64_t h = c.in[kHidden].shape().size(1);
  const auto step = [h](const std::vector<Value>& rows, const std::vector<Value>& states,
                        const std::vector<Value>& constants) {
    const Value sums = rows[0] + matmul(states[0], constants[0], false, true);
    const Value in = sigmoid(gate(sums, 0, h)), forget = sigmoid(gate(sums, 1, h)),
                candidate = tanh(gate(sums, 2, h)), out = sigmoid(gate(sums, 3, h));
    const Value cell = forget * states[1] + in * candidate;
    const Value hidden = out * tanh(cell);
    return std::vector{hidden, cell, hidden, concat(std::vector{in, forget, candidate, out}, -1),
                       cell};
  };
  const Recurrence ran = run_steps({c.in[kGates]}, {c.in[kHidden], c.in[kCell]}, {c.in[kWeight]},
                                   c.node.attrs.get<bool>("reverse"), step);
  return {ran.rows[0], ran.states[0], ran.states[1], ran.rows[1], ran.rows[2]};
}

void differentiate_lstm(VjpContext& c) {
  if (c.has_grad(kActivations) || c.has_grad(kCells)) return differentiate_decomposition(c);
  const Value in[] = {c.result(kActivations),
                      c.result(kCells),
                      c.operand(kCell),
                      c.operand(kWeight),
                      gradient_or_zeros(c, kOutputs),
                      gradient_or_zeros(c, kLastHidden),
                      gradient_or_zeros(c, kLastCell)};
  const bool reverse = c.attrs().get<bool>("reverse");
  const auto out = call(Op::lstm_grad, in, {{"reverse", reverse}});
  c.set(kGates, out[0]);
  c.set(kHidden, out[1]);
  c.set(kCell, out[2]);
  if (c.wants(kWeight))
    c.set(kWeight,
          recurrent_weight_gradient(out[0], c.result(kOutputs), c.operand(kHidden), reverse));
}

// Operands of lstm_grad.
enum : size_t { kOfActivations, kOfCells, kFirstCell, kOfWeight, kDOutputs, kDHidden, kDCell };

std::vector<Type> infer_lstm_grad(const InferContext& c) {
  expect_operands(c, 7);
  const RecurrentSizes f = lstm_form(c, "activations", kDHidden);
  const Shape state{f.batch, f.width}, rows{f.steps, f.batch, f.width};
  expect_shape(c, kOfCells, "cells", rows);
  expect_shape(c, kFirstCell, "cell", state);
  expect_shape(c, kOfWeight, "weight", {Dim(4 * f.width), Dim(f.width)});
  expect_shape(c, kDOutputs, "the gradient of outputs", rows);
  expect_shape(c, kDHidden, "the gradient of hidden", state);
  expect_shape(c, kDCell, "the gradient of cell", state);
  const Type state_type{c.in[0].dtype, state};
  return {c.in[0], state_type, state_type};
}

std::vector<Value> decompose_lstm_grad(const DecomposeContext& c) {
  const bool reverse = c.node.attrs.get<bool>("reverse");
  const int64_t h = c.in[kDHidden].shape().size(1);
  const auto step = [h](const std::vector<Value>& rows, const std::vector<Value>& states,
                        const std::vector<Value>& constants) {
    const Value in = gate(rows[0], 0, h), forget = gate(rows[0], 1, h),
                candidate = gate(rows[0], 2, h), out = gate(rows[0], 3, h);
    const Value d_hidden = states[0] + rows[3], bent = tanh(rows[1]);
    const Value d_cell = states[1] + d_hidden * out * (1.0 - bent * bent);
    const Value d = concat(std::vector{d_cell * candidate * in * (1.0 - in),
                                       d_cell * rows[2] * forget * (1.0 - forget),
                                       d_cell * in * (1.0 - candidate * candidate),
                                       d_hidden * bent * out * (1.0 - out)},
                           -1);
    return std::vector{matmul(d, constants[0]), d_cell * forget, d};
  };
  const Recurrence ran =
      run_steps({c.in[kOfActivations], c.in[kOfCells],
                 states_before_steps(c.in[kOfCells], c.in[kFirstCell], reverse), c.in[kDOutputs]},
                {c.in[kDHidden], c.in[kDCell]}, {c.in[kOfWeight]}, !reverse, step);
  return {ran.rows[0], ran.states[0], ran.states[1]};
}

std::vector<Sample> lstm_samples() {
  std::vector<Sample> samples;
  for (const auto [t, b, h, reverse] : kRecurrentSamples)
    samples.push_back(
        {{tensor({t, b, 4 * h}, -2, 2), tensor({4 * h, h}), tensor({b, h}), tensor({b, h})},
         {{"reverse", reverse}}});
  return samples;
}

std::vector<Sample> lstm_grad_samples() {
  std::vector<Sample> samples;
  for (const auto [t, b, h, reverse] : kRecurrentSamples)
    samples.push_back({{tensor({t, b, 4 * h}, 0.1, 0.9), tensor({t, b, h}), tensor({b, h}),
                        tensor({4 * h, h}), tensor({t, b, h}), tensor({b, h}), tensor({b, h})},
                       {{"reverse", reverse}}});
  return samples;
}

}  // namespace

std::vector<OpDef> lstm_ops() {
  OpDef forward;
  forward.name = "lstm";
  forward.doc =
      "The steps of an LSTM: i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of gates[t] + hidden "
      "weight^T; cell = f cell + i g; hidden = o tanh(cell). gates: [T, B, 4 H], what the input "
      "gives, with biases; weight: [4 H, H]; hidden, cell: [B, H]. Results: outputs, the hidden "
      "state of each step, [T, B, H]; the last hidden and cell, [B, H]; and for the derivative "
      "the gates behind their functions, [T, B, 4 H], and the cells, [T, B, H]. With {reverse} "
      "the steps run from T - 1 to 0. Sums in f32";
  forward.op_class = OpClass::control;
  forward.autocast = Autocast::fp32;
  forward.infer = infer_lstm;
  forward.decompose = decompose_lstm;
  forward.vjp = differentiate_lstm;
  forward.cost = [](const Node& n, std::span<const Type> in) {
    return recurrent_cost(n, in, 4, 25);
  };
  forward.samples = lstm_samples;
  forward.in_place = {{kActivations, kGates}};

  OpDef backward;
  backward.name = "lstm_grad";
  backward.is_gradient = true;
  backward.doc =
      "The gradients of lstm's gates, [T, B, 4 H], hidden and cell, [B, H]. Operands: lstm's "
      "activations and cells; its first cell, [B, H]; weight: [4 H, H]; the gradients of its "
      "outputs, [T, B, H], and of its last hidden and cell, [B, H]. The gradient of the weight is "
      "a product of the gates' gradients and the outputs. Sums in f32";
  backward.op_class = OpClass::control;
  backward.autocast = Autocast::fp32;
  backward.infer = infer_lstm_grad;
  backward.decompose = decompose_lstm_grad;
  backward.cost = [](const Node& n, std::span<const Type> in) {
    return recurrent_cost(n, in, 4, 40);
  };
  backward.samples = lstm_grad_samples;
  backward.in_place = {{0, kOfActivations}};
  return {std::move(forward), std::move(backward)};
}

}  // namespace ops
}  // namespace brrr
