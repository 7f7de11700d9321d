// LSTM, GRU and RNN: one product for the whole input, then the ops lstm and gru, or, for variants
// that they do not have, a loop over time whose body is a product with the state and element-wise
// nodes.

#include <algorithm>
#include <functional>

#include "base/encoding/ascii.h"
#include "modules/onnx/call.h"
#include "ops/control.h"
#include "ops/recurrent.h"

namespace brrr::onnx {
namespace {

using Activation = std::function<Value(Value)>;

/// Activations by name, with the numbers that they take.
struct ActivationRow {
  std::string_view name;
  std::optional<double> alpha, beta;  // where it takes them: their defaults
  Value (*apply)(Value x, double alpha, double beta);
};

Value zero_like(Value x) { return scalar(*x.graph, 0, x.dtype()); }

const ActivationRow kActivations[] = {
    {"relu", {}, {}, [](Value x, double, double) { return relu(x); }},
    {"tanh", {}, {}, [](Value x, double, double) { return tanh(x); }},
    {"sigmoid", {}, {}, [](Value x, double, double) { return sigmoid(x); }},
    {"affine", 1, 0, [](Value x, double alpha, double beta) { return x * alpha + beta; }},
    {"leakyrelu",
     0.01,
     {},
     [](Value x, double alpha, double) { return where(less(x, zero_like(x)), x * alpha, x); }},
    {"thresholdedrelu",
     1,
     {},
     [](Value x, double alpha, double) {
       return where(greater(x, scalar(*x.graph, alpha, x.dtype())), x, zero_like(x));
     }},
    {"scaledtanh", 1, 1, [](Value x, double alpha, double beta) { return tanh(x * beta) * alpha; }},
    {"hardsigmoid", 0.2, 0.5,
     [](Value x, double alpha, double beta) {
       return minimum(maximum(x * alpha + beta, zero_like(x)), scalar(*x.graph, 1, x.dtype()));
     }},
    {"elu",
     1,
     {},
     [](Value x, double alpha, double) {
       return where(less(x, zero_like(x)), expm1(x) * alpha, x);
     }},
    {"softsign", {}, {}, [](Value x, double, double) { return x / (abs(x) + 1.0); }},
    {"softplus",
     {},
     {},
     [](Value x, double, double) { return maximum(x, zero_like(x)) + log1p(exp(-abs(x))); }},
};

/// Those of all directions, in the order of the attribute.
std::vector<Activation> activations_of(const Call& c, const std::vector<std::string>& fallback,
                                       size_t directions) {
  std::vector<std::string> names = c.text_list("activations");
  if (names.empty())
    for (size_t d = 0; d < directions; ++d)
      names.insert(names.end(), fallback.begin(), fallback.end());
  if (names.size() != fallback.size() * directions)
    c.fail("{} activations instead of {}", names.size(), fallback.size() * directions);
  const auto alphas = c.number_list("activation_alpha").value_or(std::vector<float>{});
  const auto betas = c.number_list("activation_beta").value_or(std::vector<float>{});
  size_t alpha_at = 0, beta_at = 0;
  const auto next = [](const std::vector<float>& list, size_t& at,
                       std::optional<double> otherwise) {
    if (!otherwise) return 0.0;
    return at < list.size() ? static_cast<double>(list[at++]) : *otherwise;
  };
  std::vector<Activation> all;
  for (const std::string& name : names) {
    const auto* row = std::ranges::find(kActivations, ascii_lowercase(name), &ActivationRow::name);
    if (row == std::end(kActivations)) c.refuse("the activation '{}'", name);
    const double alpha = next(alphas, alpha_at, row->alpha), beta = next(betas, beta_at, row->beta);
    all.emplace_back([=](Value x) { return row->apply(x, alpha, beta); });
  }
  return all;
}

/// One step of one direction. x: [B, G H], what the input gives to the gates; the first state is
/// h: [B, H]. `weights` are those that the kind of layer has listed, in the graph of x.
using Step = std::function<std::vector<Value>(Value x, const std::vector<Value>& states,
                                              const std::vector<Value>& weights)>;

struct Direction {
  Value x;                       // [T, B, G H]
  std::vector<Value> states;     // [B, H] each
  std::vector<Value> weights;    // what a step reads
  std::optional<Value> lengths;  // i32[B, 1], where sequences end before T
  Step step;
};

struct Ran {
  Value y;                    // [T, B, H]
  std::vector<Value> states;  // after the last step
};

/// A step that leaves the states of sequences that have ended as they are. Gives the row of y, too.
std::vector<Value> masked_step(const Direction& d, Value x, Value time,
                               const std::vector<Value>& states, std::vector<Value> weights) {
  std::optional<Value> lengths;
  if (d.lengths) {
    lengths = weights.back();
    weights.pop_back();
  }
  std::vector<Value> next = d.step(x, states, weights);
  next.push_back(next[0]);
  if (!lengths) return next;
  const Value is_inside = less(time, *lengths);
  for (size_t i = 0; i < states.size(); ++i) next[i] = where(is_inside, next[i], states[i]);
  next.back() = where(is_inside, next.back(), zero_like(next.back()));
  return next;
}

Ran run_direction(Direction d) {
  Graph& g = *d.x.graph;
  const int64_t steps = d.x.shape().size(0);
  if (d.lengths) d.weights.push_back(*d.lengths);
  if (steps == 1) {  // as models that hear one frame after the other have it
    const Value x = reshape(d.x, {d.x.shape()[1], d.x.shape()[2]});
    std::vector<Value> next = masked_step(d, x, scalar(g, 0, DType::i32), d.states, d.weights);
    Shape shape = next.back().shape();
    shape.insert(0, Dim(1));
    const Value y = reshape(next.back(), shape);
    next.pop_back();
    return {y, next};
  }
  Graph body;
  size_t inputs = 0;
  const auto input = [&](const Type& type) {
    return body.input(fmt::format("a{}", inputs++), Type(type));
  };
  const Value time = input({DType::i32, {}});
  std::vector<Value> states, weights;
  for (const Value& v : d.states) states.push_back(input(v.type()));
  const Value x = input(d.x.type());
  for (const Value& v : d.weights) weights.push_back(input(v.type()));
  const std::vector<Value> next = masked_step(d, gather(x, time, 0), time, states, weights);
  body.output("0", scalar(body, true, DType::boolean));
  for (size_t i = 0; i < next.size(); ++i) body.output(std::to_string(i + 1), next[i]);
  std::vector<Value> captured{d.x};
  captured.insert(captured.end(), d.weights.begin(), d.weights.end());
  const LoopResults r = loop(scalar(g, true, DType::boolean), Region(std::move(body)), d.states,
                             captured, {.bound = steps});
  return {r.stacked[0], r.carried};
}

/// The operands of a layer and what its attributes say. Operands: X, W, R, B, sequence_lens and
/// initial_h; an LSTM has initial_c and P behind them.
class Recurrent {
 public:
  Recurrent(Call& c, int64_t gates, const std::vector<std::string>& activations)
      : c_(c),
        gates_(gates),
        dtype_(c.in(0).dtype()),
        wide_(dtype_ == DType::f16 || dtype_ == DType::bf16 ? DType::f32 : dtype_),
        is_batch_first_(c.integer("layout", 0) != 0) {
    const std::string direction = c.text("direction", "forward");
    if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
      c.fail("direction must be forward, reverse or bidirectional; got {}", direction);
    directions_ = direction == "bidirectional" ? 2 : 1;
    is_reverse_ = direction == "reverse";
    const Value r = c.in(2);
    if (c.in(0).shape().rank() != 3 || c.in(1).shape().rank() != 3 || r.shape().rank() != 3)
      c.fail("X, W and R must have three axes");
    hidden_ = r.shape().size(2);
    if (r.shape().size(0) != directions_ || r.shape().size(1) != gates * hidden_)
      c.fail("R must be [{}, {}, {}]; got {}", directions_, gates * hidden_, hidden_,
             r.type().str());
    if (c.integer("hidden_size", hidden_) != hidden_)
      c.fail("hidden_size is {}, and R is {}", c.integer("hidden_size"), r.type().str());
    x_ = wide(0);
    if (is_batch_first_) x_ = transpose(x_, {1, 0, 2});
    steps_ = x_.shape().size(0);
    batch_ = x_.shape().size(1);
    activations_ = activations_of(c, activations, static_cast<size_t>(directions_));
    per_direction_ = activations.size();
    if (c.has_attribute("clip")) clip_ = c.number("clip");
    if (c.has(4)) take_lengths();
  }

  Call& call() { return c_; }
  int64_t hidden() const { return hidden_; }
  int64_t batch() const { return batch_; }
  Activation activation(int64_t d, size_t k) const {
    return activations_[static_cast<size_t>(d) * per_direction_ + k];
  }
  /// An activation of sums, which are limited where the layer has a clip.
  Activation gate_activation(int64_t d, size_t k) const {
    const Activation f = activation(d, k);
    if (!clip_) return f;
    return [f, clip = *clip_](Value x) {
      const Value high = scalar(*x.graph, clip, x.dtype()),
                  low = scalar(*x.graph, -clip, x.dtype());
      return f(minimum(maximum(x, low), high));
    };
  }
  /// Operand i of direction d without that axis.
  Value of_direction(size_t i, int64_t d) {
    const Value all = wide(i);
    Shape shape = all.shape();
    if (shape.rank() < 2 || shape.size(0) != directions_)
      c_.fail("operand {} must be [{}, ...]; got {}", i, directions_, all.type().str());
    shape.erase(0);
    return reshape(directions_ == 1 ? all : slice(all, 0, d, 1), shape);
  }
  /// Columns [from, from + count) H of the gates.
  Value gates(Value x, int64_t from, int64_t count = 1) const {
    return slice(x, x.shape().rank() - 1, from * hidden_, count * hidden_);
  }
  /// The biases of the input, then those of the state: [G H] each.
  std::pair<Value, Value> biases(int64_t d) {
    const int64_t n = gates_ * hidden_;
    if (!c_.has(3)) {
      const Value none = full(c_.graph(), {n}, 0, wide_);
      return {none, none};
    }
    const Value both = of_direction(3, d);
    return {slice(both, 0, 0, n), slice(both, 0, n, n)};
  }
  /// What the input gives to the gates: [T, B, G H].
  Value from_input(int64_t d, Value bias) {
    return from_input(is_backward(d) ? reversed(x_) : x_, of_direction(1, d), bias);
  }
  Value initial(size_t i, int64_t d) {
    if (!c_.has(i)) return full(c_.graph(), {batch_, hidden_}, 0, wide_);
    if (!is_batch_first_) return of_direction(i, d);
    return reshape(slice(wide(i), 1, d, 1), {batch_, hidden_});
  }
  const std::optional<Value>& lengths() const { return lengths_; }

  /// Whether the ops lstm and gru compute the layer. A weight that is computed (of integers, for
  /// one) has kernels of its own for the products of a loop, and so has a single step.
  bool fits_ops() {
    constexpr int64_t kFewSteps = 2;
    const NodeId weight = c_.in(2).id.node;
    return steps_ > kFewSteps && batch_ > 0 && wide_ == DType::f32 && dtype_ == wide_ && !clip_ &&
           !lengths_ && !c_.has_attribute("activations") && c_.graph().is_input(weight);
  }
  /// Gates of operand i in another order: part k is part order[k] of the file. x: [G H, ...].
  Value in_order(Value x, const std::vector<int32_t>& order) {
    Shape parts = x.shape();
    parts[0] = Dim(hidden_);
    parts.insert(0, Dim(gates_));
    std::vector<Number> numbers;
    for (const int32_t k : order) numbers.push_back(int64_t{k});
    const Value ids = literal(c_.graph(), {gates_}, numbers, DType::i32);
    return reshape(gather(reshape(x, parts), ids, 0), x.shape());
  }
  /// What the input gives to the gates in that order, time as it is: [T, B, G H].
  Value ordered_gates(int64_t d, Value bias, const std::vector<int32_t>& order) {
    return from_input(x_, in_order(of_direction(1, d), order), in_order(bias, order));
  }
  bool is_backward(int64_t d) const { return is_reverse_ || d == 1; }

  /// Runs every direction and gives the outputs: Y, then the states.
  void run(const std::function<Direction(int64_t d)>& direction) {
    give([&](int64_t d) {
      Ran ran = run_direction(direction(d));
      if (is_backward(d)) ran.y = reversed(ran.y);
      return ran;
    });
  }
  /// Gives the outputs of directions that were run: y of the steps in their order.
  void give(const std::function<Ran(int64_t d)>& direction) {
    std::vector<Value> y;
    std::vector<std::vector<Value>> states;
    for (int64_t d = 0; d < directions_; ++d) {
      const Ran ran = direction(d);
      y.push_back(reshape(ran.y, {steps_, 1, batch_, hidden_}));
      states.resize(ran.states.size());
      for (size_t i = 0; i < states.size(); ++i)
        states[i].push_back(reshape(ran.states[i], {1, batch_, hidden_}));
    }
    const auto joined = [&](const std::vector<Value>& parts, int axis) {
      return cast(parts.size() == 1 ? parts[0] : concat(parts, axis), dtype_);
    };
    const Value all = joined(y, 1);
    c_.out(is_batch_first_ ? transpose(all, {2, 0, 1, 3}) : all);
    for (size_t i = 0; i < states.size(); ++i) {
      const Value last = joined(states[i], 0);
      c_.out(1 + i, is_batch_first_ ? transpose(last, {1, 0, 2}) : last);
    }
  }

 private:
  Value from_input(Value x, Value weight, Value bias) const {
    const Value rows =
        matmul(reshape(x, {steps_ * batch_, x.shape().size(2)}), weight, false, true);
    return reshape(rows + bias, {steps_, batch_, gates_ * hidden_});
  }
  Value wide(size_t i) { return cast(c_.in(i), wide_); }
  void take_lengths() {
    if (c_.in(4).shape().elements() != batch_)
      c_.fail("sequence_lens must have {} numbers; got {}", batch_, c_.in(4).type().str());
    if (const RefTensor* known = c_.known_or_null(4)) {
      bool all_whole = true;
      for (size_t i = 0; i < known->size(); ++i) all_whole &= known->integer<int64_t>(i) >= steps_;
      if (all_whole) return;
    }
    lengths_ = reshape(cast(c_.in(4), DType::i32), {batch_, 1});
  }
  /// x: [T, B, C] with time backwards, within the length of each sequence.
  Value reversed(Value x) {
    Graph& g = c_.graph();
    const Value last = scalar(g, steps_ - 1, DType::i32);
    if (!lengths_) return gather(x, last - iota(g, {steps_}, 0, DType::i32), 0);
    const Shape grid{steps_, batch_};
    const Value t = iota(g, grid, 0, DType::i32), b = iota(g, grid, 1, DType::i32);
    const Value n = reshape(*lengths_, {1, batch_});
    const Value from = where(less(t, n), n - t - scalar(g, 1, DType::i32), t);
    const int64_t width = x.shape().size(2);
    return gather(reshape(x, {steps_ * batch_, width}), from * scalar(g, batch_, DType::i32) + b,
                  0);
  }

  Call& c_;
  int64_t gates_, hidden_ = 0, directions_ = 1, steps_ = 0, batch_ = 0;
  DType dtype_, wide_;
  bool is_batch_first_, is_reverse_ = false;
  Value x_;
  std::vector<Activation> activations_;
  size_t per_direction_ = 0;
  std::optional<double> clip_;
  std::optional<Value> lengths_;
};

Value product_with_state(Value h, Value weight) { return matmul(h, weight, false, true); }

// -- RNN
// -------------------------------------------------------------------------------------------

void rnn(Call& c) {
  Recurrent layer(c, 1, {"Tanh"});
  layer.run([&](int64_t d) {
    const auto [of_input, of_state] = layer.biases(d);
    const Activation f = layer.gate_activation(d, 0);
    return Direction{layer.from_input(d, of_input + of_state),
                     {layer.initial(5, d)},
                     {layer.of_direction(2, d)},
                     layer.lengths(),
                     [f](Value x, const std::vector<Value>& states, const std::vector<Value>& w) {
                       return std::vector{f(x + product_with_state(states[0], w[0]))};
                     }};
  });
}

// -- GRU
// -------------------------------------------------------------------------------------------

// Gates: update z, reset r, hidden h.
void gru(Call& c) {
  Recurrent layer(c, 3, {"Sigmoid", "Tanh"});
  const bool resets_product = c.integer("linear_before_reset", 0) != 0;
  if (resets_product && layer.fits_ops()) {
    const std::vector<int32_t> order{1, 0, 2};  // r, z, n
    return layer.give([&](int64_t d) {
      const auto [of_input, of_state] = layer.biases(d);
      const int64_t n = layer.hidden();
      const Value inside = slice(of_state, 0, 2 * n, n);
      const Value outside = concat(
          std::vector{slice(of_state, 0, 0, 2 * n), full(c.graph(), {n}, 0, inside.dtype())}, 0);
      const GruResults r = gru(layer.ordered_gates(d, of_input + outside, order),
                               layer.in_order(layer.of_direction(2, d), order), inside,
                               layer.initial(5, d), layer.is_backward(d));
      return Ran{r.outputs, {r.hidden}};
    });
  }
  layer.run([&](int64_t d) {
    const auto [of_input, of_state] = layer.biases(d);
    const Activation f = layer.gate_activation(d, 0), g = layer.gate_activation(d, 1);
    const Value weight = layer.of_direction(2, d);
    const int64_t n = layer.hidden();
    Direction direction{{}, {layer.initial(5, d)}, {}, layer.lengths(), {}};
    if (resets_product) {
      direction.x = layer.from_input(d, of_input);
      direction.weights = {weight, of_state};
      direction.step = [&layer, f, g](Value x, const std::vector<Value>& states,
                                      const std::vector<Value>& w) {
        const Value h = states[0], p = product_with_state(h, w[0]) + w[1];
        const Value zr = f(layer.gates(x, 0, 2) + layer.gates(p, 0, 2));
        const Value z = layer.gates(zr, 0), r = layer.gates(zr, 1);
        const Value candidate = g(layer.gates(x, 2) + r * layer.gates(p, 2));
        return std::vector{candidate + z * (h - candidate)};
      };
      return direction;
    }
    direction.x = layer.from_input(d, of_input + of_state);
    direction.weights = {slice(weight, 0, 0, 2 * n), slice(weight, 0, 2 * n, n)};
    direction.step = [&layer, f, g](Value x, const std::vector<Value>& states,
                                    const std::vector<Value>& w) {
      const Value h = states[0];
      const Value zr = f(layer.gates(x, 0, 2) + product_with_state(h, w[0]));
      const Value z = layer.gates(zr, 0), r = layer.gates(zr, 1);
      const Value candidate = g(layer.gates(x, 2) + product_with_state(r * h, w[1]));
      return std::vector{candidate + z * (h - candidate)};
    };
    return direction;
  });
}

// -- LSTM
// ------------------------------------------------------------------------------------------

// Gates: input i, output o, forget f, cell c; peepholes: i, o, f.
void lstm(Call& c) {
  Recurrent layer(c, 4, {"Sigmoid", "Tanh", "Tanh"});
  const bool has_peepholes = c.has(7), is_coupled = c.integer("input_forget", 0) != 0;
  if (!has_peepholes && !is_coupled && layer.fits_ops()) {
    const std::vector<int32_t> order{0, 2, 3, 1};  // i, f, g, o
    return layer.give([&](int64_t d) {
      const auto [of_input, of_state] = layer.biases(d);
      const LstmResults r = lstm(layer.ordered_gates(d, of_input + of_state, order),
                                 layer.in_order(layer.of_direction(2, d), order),
                                 layer.initial(5, d), layer.initial(6, d), layer.is_backward(d));
      return Ran{r.outputs, {r.hidden, r.cell}};
    });
  }
  layer.run([&](int64_t d) {
    const auto [of_input, of_state] = layer.biases(d);
    // The cell itself is not limited, as in ONNX Runtime.
    const Activation f = layer.gate_activation(d, 0), g = layer.gate_activation(d, 1),
                     h = layer.activation(d, 2);
    Direction direction{layer.from_input(d, of_input + of_state),
                        {layer.initial(5, d), layer.initial(6, d)},
                        {layer.of_direction(2, d)},
                        layer.lengths(),
                        {}};
    if (has_peepholes) direction.weights.push_back(layer.of_direction(7, d));
    direction.step = [=, &layer](Value x, const std::vector<Value>& states,
                                 const std::vector<Value>& w) {
      const Value cell = states[1];
      const Value sums = x + product_with_state(states[0], w[0]);
      const auto gate = [&](int64_t at, Value seen) {
        const Value sum = layer.gates(sums, at);
        return has_peepholes ? sum + layer.gates(w[1], at) * seen : sum;
      };
      const Value in = f(gate(0, cell));
      const Value forget = is_coupled ? 1.0 - in : f(gate(2, cell));
      const Value next = forget * cell + in * g(layer.gates(sums, 3));
      return std::vector{f(gate(1, next)) * h(next), next};
    };
    return direction;
  });
}

const OperatorRow kRecurrentRows[] = {
    {"", "RNN", rnn},
    {"", "GRU", gru},
    {"", "LSTM", lstm},
};

}  // namespace

std::span<const OperatorRow> recurrent_operators() { return kRecurrentRows; }

}  // namespace brrr::onnx
