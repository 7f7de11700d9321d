#include "models/encoder.h"

#include <algorithm>
#include <limits>

#include "base/errors.h"
#include "models/exchange_names.h"
#include "ops/ops.h"

namespace brrr::models {
namespace {

/// Pools token vectors x: [N, C] over each of the R concatenated texts.
class FlatPooler {
 public:
  FlatPooler(Value x, const EncoderRows& rows, int64_t prompt)
      : g_(*x.graph),
        x_(x),
        rows_(rows),
        texts_(rows.starts->shape().size(0) - 1),
        prompt_(prompt),
        firsts_(slice(*rows.starts, 0, 0, texts_)),
        ends_(slice(*rows.starts, 0, 1, texts_)) {}

  /// [R, C]
  Value by(Pooling pooling) const {
    switch (pooling) {
      case Pooling::cls:
        return token_at(firsts_ + number(prompt_));
      case Pooling::max:
        return segment_max(pooled_or(-std::numeric_limits<double>::infinity()), *rows_.starts);
      case Pooling::mean:
        return segment_sum(pooled_or(0), *rows_.starts) / counts();
      case Pooling::mean_sqrt_len:
        return segment_sum(pooled_or(0), *rows_.starts) / sqrt(counts());
      case Pooling::weighted_mean: {
        const Value weights = column(cast(*rows_.positions, DType::f32)) + 1.0;
        return segment_sum(pooled_or(0) * weights, *rows_.starts) / sum_of_weights();
      }
      case Pooling::last_token:
        return token_at(ends_ - number(1));
    }
    throw InternalError("an unknown pooling");
  }

 private:
  Value number(int64_t n) const { return full(g_, {}, n, DType::i32); }
  static Value column(Value x) { return reshape(x, {x.shape()[0], Dim(1)}); }
  /// Returns rows of x. Indices are clamped, so an empty text gets the row of another.
  Value token_at(Value index) const {
    const Value last = number(x_.shape().size(0) - 1);
    return embedding(x_, minimum(maximum(index, number(0)), last));
  }
  /// Returns x with the rows of prompt tokens replaced by `other`.
  Value pooled_or(double other) const {
    if (prompt_ == 0) return x_;
    const Value is_pooled = column(greater_equal(*rows_.positions, number(prompt_)));
    return where(is_pooled, x_, scalar(g_, other, x_.dtype()));
  }
  /// f32 [R, 1]
  Value lengths() const { return column(cast(ends_ - firsts_, DType::f32)); }
  /// Clamps a divisor so that an empty text has a mean of 0 and no gradient, instead of NaN.
  Value at_least_one(Value x) const { return maximum(x, scalar(g_, 1)); }
  Value counts() const {
    return at_least_one(prompt_ == 0 ? lengths() : lengths() - static_cast<double>(prompt_));
  }
  Value sum_of_weights() const {
    const Value n = lengths(), all = n * (n + 1.0) * 0.5;
    return at_least_one(prompt_ == 0 ? all
                                     : all - 0.5 * static_cast<double>(prompt_ * (prompt_ + 1)));
  }

  Graph& g_;
  Value x_;
  const EncoderRows& rows_;
  int64_t texts_, prompt_;  // the tokens of a prompt are not pooled
  Value firsts_, ends_;     // i32 [R]
};

/// Pooling of x: [B, T, C] over the real rows.
class Pooler {
 public:
  Pooler(Value x, const EncoderRows& rows, int64_t prompt)
      : g_(*x.graph),
        x_(x),
        rows_(rows),
        batch_(x.shape()[0]),
        width_(x.shape()[2]),
        prompt_(prompt) {
    BRRR_CHECK(prompt == 0 || rows.lengths, "prompts are left out where lengths are known");
    places_ = iota(g_, {Dim(1), x.shape()[1], Dim(1)}, 1);
  }

  /// [B, C]
  Value by(Pooling pooling) const {
    switch (pooling) {
      case Pooling::cls:
        return reshape(slice(x_, 1, first_row(), 1), {batch_, width_});
      case Pooling::max:
        return max(
            where(is_real(), x_, scalar(g_, -std::numeric_limits<double>::infinity(), x_.dtype())),
            {1});
      case Pooling::mean:
        return sum_of(x_) / counts();
      case Pooling::mean_sqrt_len:
        return sum_of(x_) / sqrt(counts());
      case Pooling::weighted_mean: {
        const Value weights = cast(places_, DType::f32) + 1.0;
        return sum_of(x_ * weights) / sum_of_weights(weights);
      }
      case Pooling::last_token:
        return sum(where(is_last(), x_, scalar(g_, 0, x_.dtype())), {1});
    }
    throw InternalError("an unknown pooling");
  }

 private:
  /// The first row that is pooled. A program of fewer rows than the prompt has is never run.
  int64_t first_row() const {
    return prompt_ == 0 ? 0 : std::min(prompt_, x_.shape()[1].size() - 1);
  }
  /// bool [B, T, 1]: the rows that are pooled.
  Value is_real() const {
    const Dim one(1);
    if (rows_.lengths) {
      const Value is_text = less(places_, reshape(*rows_.lengths, {batch_, one, one}));
      if (prompt_ == 0) return is_text;
      return logical_and(is_text, greater_equal(places_, full(g_, {}, prompt_, DType::i32)));
    }
    return reshape(*rows_.is_real, {batch_, x_.shape()[1], one});
  }
  /// The sum of x over the real rows: [B, C].
  Value sum_of(Value x) const { return sum(where(is_real(), x, scalar(g_, 0, x.dtype())), {1}); }
  /// How many rows are real: f32 [B, 1].
  Value counts() const {
    if (rows_.lengths) {
      const Value lengths = reshape(cast(*rows_.lengths, DType::f32), {batch_, Dim(1)});
      return prompt_ == 0 ? lengths : lengths - static_cast<double>(prompt_);
    }
    return sum(where(is_real(), scalar(g_, 1), scalar(g_, 0)), {1});
  }
  /// weights: f32 [1, T, 1]; returns [B, 1].
  Value sum_of_weights(Value weights) const {
    if (!rows_.lengths) return sum(where(is_real(), weights, scalar(g_, 0)), {1});
    const Value n = reshape(cast(*rows_.lengths, DType::f32), {batch_, Dim(1)});
    const Value all = n * (n + 1.0) * 0.5;
    return prompt_ == 0 ? all : all - 0.5 * static_cast<double>(prompt_ * (prompt_ + 1));
  }
  /// bool [B, T, 1]: the last of the real rows.
  Value is_last() const {
    const Dim one(1);
    if (rows_.lengths)
      return equal(places_ + full(g_, {}, 1, DType::i32),
                   reshape(*rows_.lengths, {batch_, one, one}));
    const Value last = max(where(is_real(), places_, scalar(g_, -1, DType::i32)), {1}, true);
    return equal(places_, last);
  }

  Graph& g_;
  Value x_, places_;
  const EncoderRows& rows_;
  Dim batch_, width_;
  int64_t prompt_;  // the rows of a prompt, which are not pooled
};

}  // namespace

Value unit_length(Value x) {
  constexpr double kLeastNorm = 1e-12;  // as torch.nn.functional.normalize has it
  const Value norm = sqrt(sum(square(x), {1}, true));
  return x / maximum(norm, scalar(*x.graph, kLeastNorm, x.dtype()));
}

Value pooled(Value x, const EncoderRows& rows, const Task& task) {
  std::vector<Value> parts;
  for (const Pooling pooling : task.pooling)
    parts.push_back(rows.is_flat() ? FlatPooler(x, rows, task.prompt_tokens).by(pooling)
                                   : Pooler(x, rows, task.prompt_tokens).by(pooling));
  const Value y = parts.size() == 1 ? parts[0] : concat(parts, 1);
  return task.normalize ? unit_length(y) : y;
}

Value text_loss(Value logits, Value targets, const std::optional<Value>& values) {
  if (!values) return sum(cross_entropy(logits, targets).losses, {0});
  Graph& g = *logits.graph;
  const auto outputs = static_cast<double>(values->shape().size(1));
  const Value is_scored =
      reshape(not_equal(targets, full(g, {}, -1, DType::i32)), {targets.shape()[0], Dim(1)});
  const Value errors = square(cast(logits, DType::f32) - *values);
  return sum(where(is_scored, errors, scalar(g, 0)), {0, 1}) * (1.0 / outputs);
}

EncoderRows EncoderModel::padded_rows(Graph& g, Dim batch, Dim length) const {
  const int64_t longest = sizes().context;
  if (!length.is_symbol() && length.size() > longest)
    user_error("[{}] the length must be at most {} positions; got {}", architecture().name, longest,
               length.str());
  EncoderRows rows;
  rows.tokens = g.input("tokens", {batch, length}, DType::i32);
  if (has_token_types()) rows.types = g.input("types", {batch, length}, DType::i32);
  rows.lengths = g.input("lengths", {batch}, DType::i32);
  return rows;
}

EncoderRows EncoderModel::flat_rows(Graph& g, const FlatBinding& binding) const {
  const auto of_tokens = [&](const char* name) {
    return g.input(name, {binding.tokens}, DType::i32);
  };
  EncoderRows rows;
  rows.tokens = of_tokens("tokens");
  if (has_token_types()) rows.types = of_tokens("types");
  rows.positions = of_tokens("positions");
  rows.starts = g.input("starts", {binding.texts + 1}, DType::i32);
  rows.longest = binding.longest > 0 ? binding.longest : sizes().context;
  return rows;
}

Value EncoderModel::head_of(const EncoderNet& net, Value x, const EncoderRows& rows) const {
  switch (task().head) {
    case Head::masked_token:
      return net.token_logits(x);
    case Head::classes:
    case Head::values:
      return net.text_logits(pooled(x, rows, {.pooling = {text_pooling()}}));
    case Head::token_classes:
      return net.tag_logits(x);
    case Head::embedding:
    case Head::next_token:
      break;
  }
  throw InternalError("a head without logits");
}

void EncoderModel::add_loss(Graph& g, const EncoderRows& rows, bool trains) const {
  const Task t = task();
  if (t.head == Head::embedding)
    user_error("[{}] a model that gives embeddings has no loss; give it a task",
               architecture().name);
  if (t.head == Head::classes && t.several)
    user_error("[{}] a model for multi-label classification cannot be trained",
               architecture().name);
  const bool by_text = t.head == Head::classes || t.head == Head::values;
  const Value targets =
      g.input("targets", by_text ? Shape{rows.texts()} : rows.tokens.shape(), DType::i32);
  std::optional<Value> values;
  const auto outputs = static_cast<int64_t>(t.labels.size());
  if (t.head == Head::values) values = g.input("values", {rows.texts(), outputs}, DType::f32);
  const Value scale = g.input("loss_scale", {}, DType::f32);
  std::optional<Value> key;
  if (trains && has_dropout()) key = g.input("rng_key", {2}, DType::i32);
  Parameters parameters(g, trains ? Purpose::training : Purpose::inference);
  const auto net = build(parameters, key);
  const Value logits = head_of(*net, net->trunk(rows), rows);
  Scope scope(g, "loss");
  const auto summed = [](Value losses) {
    return losses.shape().rank() == 1 ? sum(losses, {0}) : sum(losses, {0, 1});
  };
  const Value total =
      by_text ? text_loss(logits, targets, values) : summed(cross_entropy(logits, targets).losses);
  g.output("loss", total * scale);
  if (!trains && t.head != Head::masked_token) g.output("logits", cast(logits, DType::f32));
}

Graph EncoderModel::loss(int64_t batch, int64_t length) const {
  Graph g;
  add_loss(g, padded_rows(g, Dim(batch), Dim(length)), true);
  return g;
}

Graph EncoderModel::scored(int64_t batch, int64_t length) const {
  Graph g;
  add_loss(g, padded_rows(g, Dim(batch), Dim(length)), false);
  return g;
}

Graph EncoderModel::flat_loss(const FlatBinding& binding) const {
  Graph g;
  add_loss(g, flat_rows(g, binding), true);
  return g;
}

Graph EncoderModel::flat_scored(const FlatBinding& binding) const {
  Graph g;
  add_loss(g, flat_rows(g, binding), false);
  return g;
}

Graph EncoderModel::forward(Dim batch, Dim length) const {
  Graph g;
  const EncoderRows rows = padded_rows(g, batch, length);
  Parameters parameters(g, Purpose::inference);
  const auto net = build(parameters, std::nullopt);
  const Value x = net->trunk(rows);
  const Task t = task();
  if (t.head == Head::embedding) {
    Scope scope(g, "pooling");
    g.output("embedding", pooled(cast(x, DType::f32), rows, t));
  } else {
    g.output("logits", head_of(*net, x, rows));
  }
  return g;
}

Graph EncoderModel::forward_at(int64_t batch, int64_t length, int64_t places) const {
  BRRR_CHECK(task().head == Head::masked_token, "[{}] forward_at", architecture().name);
  Graph g;
  const EncoderRows rows = padded_rows(g, Dim(batch), Dim(length));
  const Value at = g.input("places", {places}, DType::i32);
  Parameters parameters(g, Purpose::inference);
  const auto net = build(parameters, std::nullopt);
  const Value x = net->trunk(rows);
  const Value chosen = embedding(reshape(x, {Dim(batch * length), x.shape()[2]}), at);
  g.output("logits", net->token_logits(chosen));
  return g;
}

Graph EncoderModel::flat(const FlatBinding& binding) const {
  const Task t = task();
  Graph g;
  const EncoderRows rows = flat_rows(g, binding);
  std::optional<Value> places;
  if (binding.places) {
    BRRR_CHECK(t.head == Head::masked_token, "[{}] places", architecture().name);
    places = g.input("places", {*binding.places}, DType::i32);
  }
  Parameters parameters(g, Purpose::inference);
  const auto net = build(parameters, std::nullopt);
  const Value x = net->trunk(rows);
  if (t.head == Head::embedding) {
    Scope scope(g, "pooling");
    g.output("embedding", pooled(cast(x, DType::f32), rows, t));
  } else {
    g.output("logits", head_of(*net, places ? embedding(x, *places) : x, rows));
  }
  return g;
}

Graph EncoderModel::exchange(const ExchangeBinding& binding) const {
  const int64_t longest = sizes().context;
  if (binding.past) user_error("[{}] an encoder has no cache", architecture().name);
  if (binding.length > longest)
    user_error("[{}] the length must be at most {} positions; got {}", architecture().name, longest,
               binding.length);
  Graph g;
  const Shape shape{binding.batch, binding.length};
  const Value ids = g.input(exchange_names::kIds, shape, DType::i64);
  const Value mask = g.input(exchange_names::kMask, shape, DType::i64);
  EncoderRows rows;
  if (has_token_types())
    rows.types = cast(g.input(exchange_names::kTypes, shape, DType::i64), DType::i32);
  rows.tokens = cast(ids, DType::i32);
  rows.is_real = not_equal(mask, scalar(g, 0, DType::i64));
  Parameters parameters(g, Purpose::inference);
  const auto net = build(parameters, std::nullopt);
  const Value x = net->trunk(rows);
  const Task t = task();
  if (t.head == Head::embedding) {
    g.output(exchange_names::kLastHidden, x);
    Scope scope(g, "pooling");
    g.output("sentence_embedding", pooled(x, rows, t));
  } else {
    g.output("logits", head_of(*net, x, rows));
  }
  return g;
}

Graph EncoderModel::decode(const DecodeBinding&) const {
  user_error(
      "[{}] an encoder does not generate text: use `brrr embed`, `brrr classify` or "
      "`brrr fill-mask`",
      architecture().name);
}

}  // namespace brrr::models
