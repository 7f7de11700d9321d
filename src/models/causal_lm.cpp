#include "models/causal_lm.h"

#include <algorithm>

#include "base/errors.h"
#include "models/causal_text.h"
#include "models/exchange_names.h"
#include "models/layers.h"
#include "models/losses/preference_loss.h"
#include "ops/ops.h"

namespace brrr::models {

Value CausalRows::places() const {
  const Value rows = iota(*tokens.graph, {length()}, 0);
  return first ? rows + *first : rows;
}

Value CausalRows::append_to_cache(const char* name, int64_t layer, Value part,
                                  int64_t width) const {
  if (!has_cache()) return part;
  Graph& g = *tokens.graph;
  const auto state = fmt::format("cache.{}.{}", name, layer);
  if (blocks) {
    const Shape pool{blocks->blocks * kBlockRows, part.shape().size(-1)};
    const Value cache = g.input(state, pool, blocks->dtype, Role::cache);
    const Value grown = update_rows(cache, blocks->slots, cast(part, blocks->dtype));
    g.update(cache, grown);
    return cast(grown, part.dtype());
  }
  const bool in_rows = part.shape().rank() == 3;
  if (past) {
    const Shape flat = part.shape();
    if (in_rows)
      part = transpose(reshape(part, {flat[0], flat[1], Dim(flat.size(2) / width), Dim(width)}),
                       {0, 2, 1, 3});
    Shape before = part.shape();
    before[2] = Dim(*past);
    const std::string which = fmt::format("{}.{}", layer, name);
    const std::vector<Value> parts{
        g.input(fmt::format("{}.{}", exchange_names::kPast, which), before, part.dtype()), part};
    const Value all = concat(parts, 2);
    g.output(fmt::format("{}.{}", exchange_names::kPresent, which), all);
    if (!in_rows) return all;
    return reshape(transpose(all, {0, 2, 1, 3}), {flat[0], all.shape()[2], flat[2]});
  }
  const int axis = in_rows ? 1 : 2;
  Shape shape = part.shape();
  shape[axis] = Dim(binding->capacity);
  Value cache = g.input(state, shape, binding->cache, Role::cache);
  Value grown = update_slice(cache, cast(part, binding->cache), *first, axis);
  g.update(cache, grown);
  return cast(grown, part.dtype());
}

AttentionOptions CausalRows::attention(double scale, int64_t window) const {
  AttentionOptions options;
  options.scale = scale;
  options.causal = true;
  options.window = window;
  options.position = first;
  options.mask = padding;
  options.starts = starts;
  if (blocks) {
    options.lengths = blocks->lengths;
    options.blocks = blocks->table;
    options.block_rows = kBlockRows;
  } else {
    options.longest = longest;
  }
  return options;
}

HeadSources heads_in_one(const CausalRows& rows, int64_t layer, Value qkv, int64_t head_width) {
  const int64_t width = qkv.shape().size(-1) / 3;
  if (!rows.has_cache()) return {{qkv}, {0, 0, true}, {0, width, true}, {0, 2 * width, true}};
  const Value k = rows.append_to_cache("key", layer, slice(qkv, -1, width, width), head_width);
  const Value v =
      rows.append_to_cache("value", layer, slice(qkv, -1, 2 * width, width), head_width);
  return {{qkv, k, v}, {0, 0, true}, {1, 0, true}, {2, 0, true}};
}

ModelPtr CausalModel::with_task(const Task& task) const {
  const std::string text = config_json(DType::f32);
  if (task.head == Head::next_token) return architecture().parse(text, "config.json");
  if (task.head == Head::classes || task.head == Head::values)
    return causal_text_model(architecture(), text, "config.json", task);
  user_error(
      "[{}] a causal language model learns classes or ratings of texts; for {} it needs an encoder "
      "(model_type bert, distilbert, roberta, xlm-roberta or mpnet)",
      architecture().name, description(task.head));
}

void CausalModel::check_length(Dim length) const {
  const int64_t longest = sizes().context;
  if (!length.is_symbol() && length.size() > longest && !is_recurrent(sizes()))
    user_error("[{}] the length must be at most {} positions; got {}", architecture().name, longest,
               length.str());
}

Graph CausalModel::loss(int64_t batch, int64_t length) const {
  check_length(Dim(length));
  Graph g;
  const Value tokens = g.input("tokens", {batch, length}, DType::i32);
  const Value targets = g.input("targets", {batch, length}, DType::i32);
  const Value scale = g.input("loss_scale", {}, DType::f32);
  std::optional<Value> key;
  if (has_dropout()) key = g.input("rng_key", {2}, DType::i32);
  Parameters parameters(g, Purpose::training);
  const auto net = build(parameters, key, head());
  const Value logits = net->logits(net->trunk({tokens, length}));
  Scope scope(g, "loss");
  g.output("loss", sum(cross_entropy(logits, targets).losses, {0, 1}) * scale);
  return g;
}

CausalRows CausalModel::flat_rows(Graph& g, const FlatBinding& binding) const {
  CausalRows rows{g.input("tokens", {binding.tokens}, DType::i32), sizes().context};
  rows.position_ids = g.input("positions", {binding.tokens}, DType::i32);
  rows.starts = g.input("starts", {binding.texts + 1}, DType::i32);
  rows.longest = binding.longest > 0 ? binding.longest : sizes().context;
  return rows;
}

CausalModel::FlatLosses CausalModel::flat_losses(Graph& g, const FlatBinding& binding) const {
  const CausalRows rows = flat_rows(g, binding);
  const Value targets = g.input("targets", {binding.tokens}, DType::i32);
  const Value scale = g.input("loss_scale", {}, DType::f32);
  std::optional<Value> key;
  if (has_dropout()) key = g.input("rng_key", {2}, DType::i32);
  Parameters parameters(g, Purpose::training);
  const auto net = build(parameters, key, head());
  const Value logits = net->logits(net->trunk(rows));
  Scope scope(g, "loss");
  return {targets, *rows.starts, scale, cross_entropy(logits, targets).losses};
}

Graph CausalModel::flat_loss(const FlatBinding& binding) const {
  Graph g;
  const FlatLosses all = flat_losses(g, binding);
  Scope scope(g, "loss");
  g.output("loss", sum(all.losses, {0}) * all.scale);
  return g;
}

Graph CausalModel::preference_loss(const FlatBinding& binding, const PreferenceLoss& loss) const {
  Graph g;
  const FlatLosses all = flat_losses(g, binding);
  const Value reference = g.input("reference", {binding.texts}, DType::f32);
  Scope scope(g, "loss");
  add_preference_loss(g, all.losses, all.targets, all.starts, reference, all.scale, loss);
  return g;
}

Graph CausalModel::forward(Dim batch, Dim length) const {
  check_length(length);
  Graph g;
  const Value tokens = g.input("tokens", {batch, length}, DType::i32);
  Parameters parameters(g, Purpose::inference);
  const auto net = build(parameters, std::nullopt, head());
  const int64_t positions = length.is_symbol() ? sizes().context : length.size();
  g.output("logits", net->logits(net->trunk({tokens, positions})));
  return g;
}

Graph CausalModel::exchange(const ExchangeBinding& binding) const {
  if (binding.past && is_recurrent(sizes()))
    user_error("[{}] a recurrent model has no cache of keys and values; export it without a cache",
               architecture().name);
  const int64_t keys = binding.past.value_or(0) + binding.length;
  check_length(Dim(keys));
  Graph g;
  const Dim batch(binding.batch), length(binding.length);
  const Value tokens = g.input(exchange_names::kIds, {batch, length}, DType::i64);
  const Value mask = g.input(exchange_names::kMask, {batch, Dim(keys)}, DType::i64);
  const Value positions = g.input(exchange_names::kPositions, {batch, length}, DType::i64);
  CausalRows rows{cast(tokens, DType::i32), keys};
  if (binding.past) rows.first = scalar(g, *binding.past, DType::i32);
  rows.past = binding.past;
  rows.position_ids = cast(positions, DType::i32);
  rows.padding = hidden_padding(not_equal(mask, scalar(g, 0, DType::i64)));
  Parameters parameters(g, Purpose::inference);
  const auto net = build(parameters, std::nullopt, head());
  const Value x = net->trunk(rows);
  g.output("logits", net->logits(x));
  std::rotate(g.outputs().begin(), g.outputs().end() - 1, g.outputs().end());
  return g;
}

Graph CausalModel::decode(const DecodeBinding& binding) const {
  const int64_t longest = sizes().context;
  if ((binding.capacity < 1 || binding.capacity > longest) && !is_recurrent(sizes()))
    user_error("[{}] the cache must have room for 1 to {} positions; got {}", architecture().name,
               longest, binding.capacity);
  Graph g;
  const Value tokens = g.input("tokens", {binding.batch, binding.length}, DType::i32);
  const Value position = g.input("position", {}, DType::i32);
  Parameters parameters(g, Purpose::inference);
  const auto net = build(parameters, std::nullopt, head());
  const Value x = net->trunk({tokens, binding.capacity, position, &binding});
  const Value last = slice(x, 1, binding.length - 1, 1);
  g.output("logits", net->logits(reshape(last, {Dim(binding.batch), x.shape()[-1]})));
  return g;
}

Graph CausalModel::decode_sequences(const SequencesBinding& b) const {
  if (is_recurrent(sizes()))
    user_error("[{}] a recurrent model does not generate texts side by side", architecture().name);
  BRRR_CHECK(b.tokens > 0 && b.sequences > 0 && b.wanted > 0 && b.blocks > 0 && b.table > 0,
             "a step without tokens, sequences or blocks");
  BRRR_CHECK(!b.chooses_adapters, "a choice of adapters of a model without any");
  Graph g;
  CausalRows rows = flat_rows(g, {.tokens = b.tokens, .texts = b.sequences});
  rows.blocks = BlockCache{b.blocks, b.cache, g.input("blocks", {b.sequences, b.table}, DType::i32),
                           g.input("lengths", {b.sequences}, DType::i32),
                           g.input("slots", {b.tokens}, DType::i32)};
  const Value wanted = g.input("wanted", {b.wanted}, DType::i32);
  Parameters parameters(g, Purpose::inference);
  const auto net = build(parameters, std::nullopt, head());
  g.output("logits", net->logits(gather(net->trunk(rows), wanted, 0)));
  return g;
}

}  // namespace brrr::models
