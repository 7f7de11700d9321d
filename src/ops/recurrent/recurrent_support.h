#pragma once
// What lstm and gru share: checks, the loop over steps and products of gradients.

#include <functional>
#include <vector>

#include "ops/recurrent.h"
#include "ops/support.h"

namespace brrr::ops {

/// T, B and H of a node, of which T and B may be symbols.
struct RecurrentSizes {
  Dim steps, batch;
  int64_t width = 0;
};
/// Throws unless operand 0, called `what` in messages, is [T, B, G H] and floating, and T at least
/// 1. G: `gates`; H: `width`. Returns the sizes.
RecurrentSizes check_recurrent(const InferContext& c, int64_t gates, const char* what,
                               int64_t width);

/// Throws unless operand i is the tensor of that shape, in the dtype of operand 0.
void expect_shape(const InferContext& c, size_t i, const char* what, const Shape& shape);

/// One step: what it reads of each sequence [B, ...], the states [B, H] and what all steps read.
/// Returns the next states, then the rows of the results.
using RecurrentStep = std::function<std::vector<Value>(const std::vector<Value>& rows,
                                                       const std::vector<Value>& states,
                                                       const std::vector<Value>& constants)>;

struct Recurrence {
  std::vector<Value> states;  // after the last step
  std::vector<Value> rows;    // [T, B, ...] each, row t of step t
};
/// Runs the steps in order, or with `backwards` from the last to the first. sequences: [T, ...].
Recurrence run_steps(const std::vector<Value>& sequences, const std::vector<Value>& states,
                     const std::vector<Value>& constants, bool backwards,
                     const RecurrentStep& step);

/// The gate from column `at` H on, `count` gates wide.
inline Value gate(Value x, int64_t at, int64_t width, int64_t count = 1) {
  return slice(x, -1, at * width, count * width);
}

/// The states that steps begin with: [T, B, H] of what steps give and what the first begins with.
Value states_before_steps(Value after, Value first, bool reverse);

/// The gradient of the recurrent weight: the sum over steps and sequences of the outer products of
/// d: [T, B, G H] and the state before the step. Returns [G H, H].
Value recurrent_weight_gradient(Value d, Value outputs, Value first, bool reverse);

/// `gates` products of [B, H] with [H, H] in each step, and so many FLOPs for each element of the
/// outputs.
Cost recurrent_cost(const Node& node, std::span<const Type> in, int64_t gates, double pointwise);

struct RecurrentSample {
  int64_t steps, batch, width;
  bool reverse;
};
inline constexpr RecurrentSample kRecurrentSamples[] = {
    {3, 2, 5, false}, {4, 3, 8, true}, {1, 2, 17, false}, {2, 1, 33, false}, {2, 9, 16, true}};

std::vector<OpDef> lstm_ops();  // lstm_grad, too
std::vector<OpDef> gru_ops();   // gru_grad, too

/// The gradient if there is one, else zeros like the value.
inline Value gradient_or_zeros(VjpContext& c, uint32_t result) {
  if (c.has_grad(result)) return c.grad(result);
  const Type type = c.result(result).type();
  return full(c.graph, type.shape, 0, type.dtype);
}

}  // namespace brrr::ops
