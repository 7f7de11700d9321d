// A language model of recurrent layers: embedding, LSTM or GRU layers, head. Tensors are time-major
// [T, B, ...] between the embedding and the head, so that a step of all sequences is one piece of
// memory. What the input gives to the gates of a layer is one product for all steps.

#include <cmath>

#include "models/layers.h"
#include "models/lstm/lstm_config.h"
#include "ops/recurrent.h"

namespace brrr::models {
namespace {

/// [A, B, ...] -> [B, A, ...]
Value swap_leading(Value x) {
  Shape swapped = x.shape();
  std::swap(swapped[0], swapped[1]);
  if (x.shape()[0] == Dim(1) || x.shape()[1] == Dim(1)) return reshape(x, swapped);
  return x.shape().rank() == 2 ? transpose(x, {1, 0}) : transpose(x, {1, 0, 2});
}

class RecurrentLayer {
 public:
  RecurrentLayer(Parameters& p, const LstmConfig& c, int64_t i, int64_t input)
      : c_(c), i_(i), width_(c.hidden_size) {
    // As wide as PyTorch's uniform distribution between -1 / sqrt(H) and 1 / sqrt(H).
    const double deviation = 1 / std::sqrt(3 * static_cast<double>(width_));
    const int64_t rows = c.gates() * width_;
    weight_ih_ = p.weight(fmt::format("rnn.weight_ih_l{}", i), {rows, input}, deviation);
    weight_hh_ = p.weight(fmt::format("rnn.weight_hh_l{}", i), {rows, width_}, deviation);
    bias_ih_ = p.bias(fmt::format("rnn.bias_ih_l{}", i), rows);
    bias_hh_ = p.bias(fmt::format("rnn.bias_hh_l{}", i), rows);
  }

  /// What the input gives to the gates. x: [..., E]; returns [..., G H].
  Value gates(Value x) const {
    Value bias = bias_hh_;
    if (c_.cell == RecurrentCell::gru)  // the last part belongs inside
      bias = concat(std::vector{slice(bias_hh_, 0, 0, 2 * width_),
                                full(*x.graph, {width_}, 0, bias_hh_.dtype())},
                    0);
    return matmul(x, weight_ih_, false, true) + (bias_ih_ + bias);
  }
  /// gates: [T, B, G H]; returns [T, B, H]. With a cache the states come from there and go there.
  Value run(Value gates, const CausalRows& rows) const {
    const Value hidden = state("hidden", gates, rows);
    if (c_.cell == RecurrentCell::gru) {
      const GruResults r = gru(gates, weight_hh_, slice(bias_hh_, 0, 2 * width_, width_), hidden);
      keep(hidden_input_, r.hidden);
      return r.outputs;
    }
    const Value cell = state("cell", gates, rows);
    const LstmResults r = lstm(gates, weight_hh_, hidden, cell);
    keep(hidden_input_, r.hidden);
    keep(cell_input_, r.cell);
    return r.outputs;
  }

 private:
  /// [B, H]: zeros where a text begins.
  Value state(const char* name, Value gates, const CausalRows& rows) const {
    Graph& g = *gates.graph;
    const Shape shape{gates.shape()[1], Dim(width_)};
    const Value zeros = full(g, shape, 0);
    if (rows.binding == nullptr) return zeros;
    const Value input =
        g.input(fmt::format("cache.{}.{}", name, i_), shape, DType::f32, Role::cache);
    (name == std::string_view("cell") ? cell_input_ : hidden_input_) = input;
    return where(less(scalar(g, 0, DType::i32), *rows.first), input, zeros);
  }
  static void keep(std::optional<Value>& input, Value next) {
    if (input) input->graph->update(*input, next);
    input.reset();
  }

  const LstmConfig& c_;
  int64_t i_, width_;
  Value weight_ih_, weight_hh_, bias_ih_, bias_hh_;
  mutable std::optional<Value> hidden_input_, cell_input_;
};

class LstmNet final : public CausalNet {
 public:
  LstmNet(Parameters& p, const LstmConfig& config, std::optional<Value> rng_key, CausalHead head)
      : g_(p.graph()), c_(config), rng_key_(rng_key) {
    p.set_place("embed");
    embed_ = p.table("embedding.weight", {c_.vocab_size, c_.embedding_width()},
                     head == CausalHead::tied);
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) {
      p.set_place(fmt::format("h.{}", i));
      layers_.emplace_back(p, c_, i, i == 0 ? c_.embedding_width() : c_.hidden_size);
    }
    if (head == CausalHead::none) return;
    p.set_place("head");
    if (head == CausalHead::own) head_ = p.weight("head.weight", {c_.vocab_size, c_.hidden_size});
    bias_ = p.bias("head.bias", c_.vocab_size);
  }

  Value trunk(const CausalRows& rows) const override {
    const Dropout dropout(rng_key_, c_.dropout);
    Value x;
    for (size_t i = 0; i < layers_.size(); ++i) {
      Scope scope(g_, fmt::format("h.{}", i));
      const RecurrentLayer& layer = layers_[i];
      Value gates = i == 0 ? first_gates(layer, rows) : layer.gates(x);
      if (rows.padding) gates = gates + hold_states(gates, *rows.padding);
      x = layer.run(gates, rows);
      if (i + 1 < layers_.size()) x = dropout(x, static_cast<int64_t>(i));
    }
    return swap_leading(x);
  }
  Value normed(Value x) const override { return x; }
  Value logits(Value x) const override {
    Scope scope(g_, "head");
    return matmul(x, head_.value_or(embed_), false, true) + *bias_;
  }

 private:
  /// The first layer reads rows of a table: where the table has fewer rows than there are tokens,
  /// it is multiplied and the rows of the product are looked up, which gives the same numbers. When
  /// text is generated, the product of a small table is computed once, because it depends on
  /// parameters alone.
  Value first_gates(const RecurrentLayer& layer, const CausalRows& rows) const {
    const Value ids = swap_leading(rows.tokens);
    const bool is_open = ids.shape()[0].is_symbol() || ids.shape()[1].is_symbol();
    const bool multiplies_table = rows.binding != nullptr
                                      ? c_.vocab_size <= c_.embedding_width()
                                      : !is_open && c_.vocab_size <= ids.shape().elements();
    if (multiplies_table) return embedding(layer.gates(embed_), ids);
    return layer.gates(embedding(embed_, ids));
  }
  /// Added to gates, it keeps the zeros of a state through the padding before a text. padding:
  /// [B, 1, 1, T], 0 or hidden.
  Value hold_states(Value gates, Value padding) const {
    const Dim t = gates.shape()[0], b = gates.shape()[1];
    const Value hidden = reshape(swap_leading(reshape(padding, {b, t})), {t, b, Dim(1)});
    constexpr double kMuch = 1e4;  // the logistic function of it is 1, of its negative 0
    const int64_t h = c_.hidden_size;
    const auto gate = [&](double value) { return full(g_, {h}, value); };
    const Value by_gate = c_.cell == RecurrentCell::lstm
                              ? concat(std::vector{gate(-kMuch), gate(kMuch), gate(0), gate(0)}, 0)
                              : concat(std::vector{gate(0), gate(kMuch), gate(0)}, 0);
    return where(less(hidden, scalar(g_, 0)), by_gate, scalar(g_, 0));
  }

  Graph& g_;
  const LstmConfig& c_;
  std::optional<Value> rng_key_;
  Value embed_;
  std::vector<RecurrentLayer> layers_;
  std::optional<Value> head_, bias_;
};

}  // namespace

std::unique_ptr<CausalNet> LstmConfig::net(Parameters& p, std::optional<Value> rng_key,
                                           CausalHead head) const {
  return std::make_unique<LstmNet>(p, *this, rng_key, head);
}

}  // namespace brrr::models
