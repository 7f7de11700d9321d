#include "ops/recurrent/recurrent_support.h"

#include "ops/control.h"

namespace brrr::ops {

void expect_shape(const InferContext& c, size_t i, const char* what, const Shape& shape) {
  expect_same_dtype(c, 0, i);
  if (c.in[i].shape != shape)
    c.fail("{} must be {}; got {}", what, Type{c.in[0].dtype, shape}.str(), c.in[i].str());
}

RecurrentSizes check_recurrent(const InferContext& c, int64_t gates, const char* what,
                               int64_t width) {
  expect_float(c, 0, what);
  const Shape& x = c.in[0].shape;
  if (x.rank() != 3 || !(x[2] == Dim(gates * width)))
    c.fail("{} must be [steps, batch, {}], {} times the width {} of the states; got {}", what,
           gates * width, gates, width, c.in[0].str());
  if (x[0] == Dim(0)) c.fail("{} must have a step at least; got {}", what, c.in[0].str());
  c.attr<bool>("reverse");
  return {x[0], x[1], width};
}

Cost recurrent_cost(const Node& node, std::span<const Type> in, int64_t gates, double pointwise) {
  const Shape& x = in[0].shape;                                   // [T, B, ...]
  const double width = static_cast<double>(in[3].shape.size(1)),  // a weight's, or a state's
      outputs = static_cast<double>(x.size(0) * x.size(1)) * width;
  return streaming_cost(node, in, outputs * (2.0 * static_cast<double>(gates) * width + pointwise));
}

Recurrence run_steps(const std::vector<Value>& sequences, const std::vector<Value>& states,
                     const std::vector<Value>& constants, bool backwards,
                     const RecurrentStep& step) {
  Graph& g = *sequences[0].graph;
  const int64_t steps = sequences[0].shape().size(0);
  Recurrence out;
  if (steps == 1) {
    std::vector<Value> rows;
    for (const Value& s : sequences) {
      Shape row = s.shape();
      row.erase(0);
      rows.push_back(reshape(s, row));
    }
    const std::vector<Value> results = step(rows, states, constants);
    for (size_t i = 0; i < results.size(); ++i) {
      if (i < states.size()) {
        out.states.push_back(results[i]);
        continue;
      }
      Shape shape = results[i].shape();
      shape.insert(0, Dim(1));
      out.rows.push_back(reshape(results[i], shape));
    }
    return out;
  }
  Graph body;
  size_t inputs = 0;
  const auto input = [&](const Type& type) {
    return body.input(fmt::format("a{}", inputs++), Type(type));
  };
  const Value i = input({DType::i32, {}});
  const Value t = backwards ? scalar(body, steps - 1, DType::i32) - i : i;
  std::vector<Value> before, rows, read, captured = sequences;
  for (const Value& v : states) before.push_back(input(v.type()));
  for (const Value& v : sequences) rows.push_back(gather(input(v.type()), t, 0));
  for (const Value& v : constants) read.push_back(input(v.type()));
  captured.insert(captured.end(), constants.begin(), constants.end());
  const std::vector<Value> results = step(rows, before, read);
  body.output("0", scalar(body, true, DType::boolean));
  for (size_t r = 0; r < results.size(); ++r) body.output(std::to_string(r + 1), results[r]);
  const LoopResults ran = loop(scalar(g, true, DType::boolean), Region(std::move(body)), states,
                               captured, {.bound = steps});
  out.states = ran.carried;
  for (const Value& rows_of_steps : ran.stacked)
    out.rows.push_back(
        backwards ? gather(rows_of_steps,
                           scalar(g, steps - 1, DType::i32) - iota(g, {steps}, 0, DType::i32), 0)
                  : rows_of_steps);
  return out;
}

Value states_before_steps(Value after, Value first, bool reverse) {
  const int64_t steps = after.shape().size(0);
  Shape shape = first.shape();
  shape.insert(0, Dim(1));
  const Value begin = reshape(first, shape);
  if (steps == 1) return begin;
  return reverse ? concat(std::vector{slice(after, 0, 1, steps - 1), begin}, 0)
                 : concat(std::vector{begin, slice(after, 0, 0, steps - 1)}, 0);
}

Value recurrent_weight_gradient(Value d, Value outputs, Value first, bool reverse) {
  const int64_t steps = d.shape().size(0), batch = d.shape().size(1), gates = d.shape().size(2),
                width = outputs.shape().size(2);
  const auto product = [&](Value dy, Value x) {
    return matmul(reshape(dy, {dy.shape().elements() / gates, gates}),
                  reshape(x, {x.shape().elements() / width, width}), true, false);
  };
  const Value at_begin = product(slice(d, 0, reverse ? steps - 1 : 0, 1), first);
  if (steps == 1 || batch == 0) return at_begin;
  return product(slice(d, 0, reverse ? 0 : 1, steps - 1),
                 slice(outputs, 0, reverse ? 1 : 0, steps - 1)) +
         at_begin;
}

}  // namespace brrr::ops
