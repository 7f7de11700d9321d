// DynamicQuantizeLSTM of com.microsoft: an LSTM whose weights are 8-bit integers. The input and, in
// each step, the state are quantised by the range of their values; products are exact.

#include "modules/onnx/call.h"
#include "modules/onnx/operators/products.h"
#include "ops/control.h"

namespace brrr::onnx {
namespace {

enum LstmOperand : size_t {
  kInput,
  kWeight,
  kStateWeight,
  kBias,
  kLengths,
  kHidden,
  kCell,
  kPeepholes,
  kWeightScale,
  kWeightZero,
  kStateScale,
  kStateZero
};

/// The weight of one direction [I, 4 H] as integers, with its scale [] or [4 H].
struct QuantisedWeight {
  Shifted weight;
  Value scale;
};

/// Part d of the first axis, without it.
Value of_one_direction(Value x, int64_t d) {
  Shape shape = x.shape();
  shape.erase(0);
  return reshape(x.shape().size(0) == 1 ? x : slice(x, 0, d, 1), shape);
}

QuantisedWeight quantised_weight(Call& c, int64_t d, size_t weight, size_t scale, size_t zero) {
  const Value all = c.in(weight);
  const int64_t directions = all.shape().rank() == 3 ? all.shape().size(0) : 0;
  for (const size_t i : {scale, zero})
    if (directions == 0 || c.in(i).shape().rank() == 0 || c.in(i).shape().size(0) != directions)
      c.fail("operand {} is {} for weights {}", i, c.in(i).type().str(), all.type().str());
  return {shifted(c, of_one_direction(all, d), of_one_direction(c.in(zero), d)),
          of_one_direction(c.in(scale), d)};
}

/// x times the weight, where x becomes integers on the way.
Value dynamic_product(Value x, const QuantisedWeight& w) {
  const DynamicallyQuantised q = quantised_by_range(x);
  const Value y = integer_product(shifted(q.values, q.zero), w.weight);
  return cast(y, DType::f32) * (q.scale * w.scale);
}

/// gates: [B, 4 H] in the order input, output, forget, cell; h, c: [B, H].
std::pair<Value, Value> lstm_step(Value gates, Value cell) {
  const int64_t width = cell.shape().size(1);
  const auto gate = [&](int64_t i) { return slice(gates, 1, i * width, width); };
  const Value next = sigmoid(gate(2)) * cell + sigmoid(gate(0)) * tanh(gate(3));
  return {sigmoid(gate(1)) * tanh(next), next};
}

struct LstmRun {
  Value y, hidden, cell;  // [T, B, H], [B, H], [B, H]
};

/// x: [T, B, 4 H], what the input and the bias give to the gates.
LstmRun run_lstm(Value x, Value hidden, Value cell, const QuantisedWeight& state) {
  Graph& g = *x.graph;
  std::vector<Value> captured{x, state.weight.value, state.scale, column_sums(state.weight.value)};
  if (state.weight.zero) captured.push_back(*state.weight.zero);
  Graph body;
  size_t inputs = 0;
  const auto input = [&](const Type& type) {
    return body.input(fmt::format("a{}", inputs++), Type(type));
  };
  const Value time = input({DType::i32, {}}), h = input(hidden.type()), s = input(cell.type());
  std::vector<Value> read;
  for (const Value& v : captured) read.push_back(input(v.type()));
  QuantisedWeight inner{{read[1], {}, read[3]}, read[2]};
  if (state.weight.zero) inner.weight.zero = read[4];
  // A row of the table [T, B 4 H].
  const int64_t batch = hidden.shape().size(0), width = x.shape().size(2);
  const Value rows = reshape(read[0], {x.shape().size(0), batch * width});
  const Value row = reshape(embedding(rows, reshape(time, {1})), {batch, width});
  const auto [next_h, next_s] = lstm_step(row + dynamic_product(h, inner), s);
  body.output("0", scalar(body, true, DType::boolean));
  body.output("1", next_h);
  body.output("2", next_s);
  body.output("3", next_h);
  const std::vector<Value> carried{hidden, cell};
  const LoopResults r = loop(scalar(g, true, DType::boolean), Region(std::move(body)), carried,
                             captured, {.bound = x.shape().size(0)});
  return {r.stacked[0], r.carried[0], r.carried[1]};
}

Value backwards(Value x) {
  Graph& g = *x.graph;
  const int64_t steps = x.shape().size(0);
  return gather(x, scalar(g, steps - 1, DType::i32) - iota(g, {steps}, 0, DType::i32), 0);
}

void check_lstm(Call& c) {
  if (c.has(kPeepholes)) c.refuse("peepholes");
  if (c.has(kLengths)) c.refuse("sequences of different lengths");
  if (c.has_attribute("clip")) c.refuse("clip");
  if (c.integer("input_forget", 0) != 0) c.refuse("input_forget");
  const std::vector<std::string> names = c.text_list("activations");
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] != (i % 3 == 0 ? "Sigmoid" : "Tanh")) c.refuse("the activation {}", names[i]);
  if (c.in(kInput).shape().rank() != 3)
    c.fail("expected X [T, B, I]; got {}", c.in(kInput).type().str());
}

void dynamic_quantize_lstm(Call& c) {
  check_lstm(c);
  const Value x = c.in(kInput);
  const int64_t width = c.integer("hidden_size"), steps = x.shape().size(0),
                batch = x.shape().size(1);
  const std::string direction = c.text("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
    c.fail("direction = {}", direction);
  const int64_t directions = direction == "bidirectional" ? 2 : 1;
  std::vector<Value> y, hidden, cell;
  for (int64_t d = 0; d < directions; ++d) {
    const bool is_backward = d == 1 || direction == "reverse";
    const auto weight = quantised_weight(c, d, kWeight, kWeightScale, kWeightZero);
    const auto state = quantised_weight(c, d, kStateWeight, kStateScale, kStateZero);
    Value gates = dynamic_product(reshape(x, {steps * batch, x.shape().size(2)}), weight);
    if (c.has(kBias)) {
      const Value both = of_one_direction(c.in(kBias), d);
      gates = gates + (slice(both, 0, 0, 4 * width) + slice(both, 0, 4 * width, 4 * width));
    }
    gates = reshape(gates, {steps, batch, 4 * width});
    const auto initial = [&](size_t i) {
      return c.has(i) ? of_one_direction(c.in(i), d)
                      : full(c.graph(), {batch, width}, 0, DType::f32);
    };
    const LstmRun run =
        run_lstm(is_backward ? backwards(gates) : gates, initial(kHidden), initial(kCell), state);
    y.push_back(reshape(is_backward ? backwards(run.y) : run.y, {steps, 1, batch, width}));
    hidden.push_back(reshape(run.hidden, {1, batch, width}));
    cell.push_back(reshape(run.cell, {1, batch, width}));
  }
  c.out(concat(y, 1));
  c.out(1, concat(hidden, 0));
  c.out(2, concat(cell, 0));
}

const OperatorRow kQuantisedLstmRows[] = {
    {"com.microsoft", "DynamicQuantizeLSTM", dynamic_quantize_lstm},
};

}  // namespace

std::span<const OperatorRow> quantised_lstm_operators() { return kQuantisedLstmRows; }

}  // namespace brrr::onnx
