#include "models/causal_lm.h"

#include "base/errors.h"
#include "ops/ops.h"

namespace brrr::models {

Value CausalRows::places() const {
  const Value rows = iota(*tokens.graph, {length()}, 0);
  return first ? rows + *first : rows;
}

Value CausalRows::kept(const char* name, int64_t layer, Value part, int axis) const {
  if (!has_cache()) return part;
  Graph& g = *tokens.graph;
  Shape shape = part.shape();
  shape[axis] = Dim(binding->capacity);
  Value cache =
      g.input(fmt::format("cache.{}.{}", name, layer), shape, binding->cache, Role::cache);
  Value grown = update_slice(cache, cast(part, binding->cache), *first, axis);
  g.update(cache, grown);
  return cast(grown, part.dtype());
}

void CausalModel::check_length(Dim length) const {
  const int64_t longest = sizes().context;
  if (length.is_symbol() || length.size() > longest)
    user_error("[{}] the length must be known and at most {} positions; got {}",
               architecture().name, longest, length.str());
}

Graph CausalModel::loss(int64_t batch, int64_t length) const {
  check_length(Dim(length));
  Graph g;
  const Value tokens = g.input("tokens", {batch, length}, DType::i32);
  const Value targets = g.input("targets", {batch, length}, DType::i32);
  const Value scale = g.input("loss_scale", {}, DType::f32);
  std::optional<Value> key;
  if (has_dropout()) key = g.input("rng_key", {2}, DType::i32);
  const auto net = build(g, key);
  const Value logits = net->logits(net->trunk({tokens, length}));
  Scope scope(g, "loss");
  g.output("loss", sum(cross_entropy(logits, targets).losses, {0, 1}) * scale);
  return g;
}

Graph CausalModel::forward(Dim batch, Dim length) const {
  check_length(length);
  Graph g;
  const Value tokens = g.input("tokens", {batch, length}, DType::i32);
  const auto net = build(g, std::nullopt);
  g.output("logits", net->logits(net->trunk({tokens, length.size()})));
  return g;
}

Graph CausalModel::decode(const DecodeBinding& binding) const {
  const int64_t longest = sizes().context;
  if (binding.capacity < 1 || binding.capacity > longest)
    user_error("[{}] the cache must have room for 1 to {} positions; got {}", architecture().name,
               longest, binding.capacity);
  Graph g;
  const Value tokens = g.input("tokens", {binding.batch, binding.length}, DType::i32);
  const Value position = g.input("position", {}, DType::i32);
  const auto net = build(g, std::nullopt);
  const Value x = net->trunk({tokens, binding.capacity, position, &binding});
  const Value last = slice(x, 1, binding.length - 1, 1);
  g.output("logits", net->logits(reshape(last, {Dim(binding.batch), x.shape()[-1]})));
  return g;
}

}  // namespace brrr::models
