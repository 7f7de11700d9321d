#pragma once
// An encoder as in "BERT" (Devlin et al., 2018): every token sees those of its own text, norms
// stand behind the residual sums, GELU is exact, and some tokens are to be told (targets of -1 are
// not). For tests of what an encoder's graph becomes.

#include "models/layers.h"
#include "ops/ops.h"

namespace brrr::test {

struct BertConfig {
  int64_t layers = 12, heads = 12, width = 768, vocab = 30522, positions = 512;
};

/// tokens, segments, targets: [B, T] i32, lengths: [B] i32; output "loss".
inline Graph bert_loss_graph(const BertConfig& c, int64_t batch, int64_t length) {
  Graph g;
  models::Parameters parameters(g, models::Purpose::training);
  const Value tokens = g.input("tokens", {batch, length}, DType::i32);
  const Value segments = g.input("segments", {batch, length}, DType::i32);
  const Value lengths = g.input("lengths", {batch}, DType::i32);
  const Value targets = g.input("targets", {batch, length}, DType::i32);
  const auto norm = [&](const std::string& name, Value x) {
    return models::LayerNorm(parameters, name, c.width, 1e-12, true)(x);
  };
  const auto dense = [&](const std::string& name, Value x, int64_t from, int64_t to) {
    return linear(x, g.parameter(name + ".weight", {from, to}), g.parameter(name + ".bias", {to}));
  };
  const Value words = g.parameter("word.weight", {c.vocab, c.width});
  const Value places = g.parameter("position.weight", {c.positions, c.width});
  const Value kinds = g.parameter("segment.weight", {2, c.width});
  Value x = norm("embeddings.norm", embedding(words, tokens) + slice(places, 0, 0, length) +
                                        embedding(kinds, segments));
  const Value columns = iota(g, {1, 1, 1, length}, 3);
  const Value visible = less(columns, reshape(lengths, {batch, 1, 1, 1}));
  const int64_t d = c.width / c.heads;
  for (int64_t i = 0; i < c.layers; ++i) {
    const Scope layer(g, fmt::format("layer.{}", i));
    const std::string name = fmt::format("layer.{}", i);
    const auto heads = [&](const char* part) {
      const Value y = dense(name + ".attention." + part, x, c.width, c.width);
      return transpose(reshape(y, {batch, length, c.heads, d}), {0, 2, 1, 3});
    };
    const Value q = heads("query"), k = heads("key"), v = heads("value");
    const Value scores = matmul(q * (1 / std::sqrt(static_cast<double>(d))), k, false, true);
    const Value p = softmax(where(visible, scores, scalar(g, -INFINITY)));
    const Value y = reshape(transpose(matmul(p, v), {0, 2, 1, 3}), {batch, length, c.width});
    x = norm(name + ".attention.norm", x + dense(name + ".attention.output", y, c.width, c.width));
    const Value h = gelu(dense(name + ".intermediate", x, c.width, 4 * c.width), Gelu::erf);
    x = norm(name + ".output.norm", x + dense(name + ".output", h, 4 * c.width, c.width));
  }
  const Scope head(g, "cls");
  x = norm("transform.norm", gelu(dense("transform", x, c.width, c.width), Gelu::erf));
  const Value logits = matmul(x, words, false, true);
  g.output("loss", sum(cross_entropy(logits, targets).losses, {0, 1}));
  return g;
}

}  // namespace brrr::test
