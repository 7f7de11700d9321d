#include "models/gpt2/gpt2.h"

#include <cmath>

namespace brrr::models {
namespace {

// Streams of the dropout generator: 0 for the embedding, then three for each layer.
int64_t stream_of(int64_t layer, int64_t which) { return 1 + 3 * layer + which; }

struct Heads {
  Value q, k, v;  // [B, H, T, D]
};

}  // namespace

struct Gpt2::Block {
  Block(Graph& g, const Gpt2Config& c, const std::string& name)
      : ln_1(g, name + ".ln_1", c.n_embd, c.layer_norm_epsilon, c.bias),
        c_attn(g, name + ".attn.c_attn", c.n_embd, 3 * c.n_embd, c.bias),
        c_proj(g, name + ".attn.c_proj", c.n_embd, c.n_embd, c.bias),
        ln_2(g, name + ".ln_2", c.n_embd, c.layer_norm_epsilon, c.bias),
        mlp_fc(g, name + ".mlp.c_fc", c.n_embd, c.mlp_width(), c.bias),
        mlp_proj(g, name + ".mlp.c_proj", c.mlp_width(), c.n_embd, c.bias) {}

  // [B, T, C] -> three of [B, H, T, D]: one move puts q, k and v in front, so that they are slices
  // of it without a copy.
  Heads split(Value x, const Gpt2Config& c) const {
    const Dim b = x.shape()[0], t = x.shape()[1];
    const Dim h(c.n_head), d(c.head_width());
    Value parts = transpose(reshape(c_attn(x), {b, t, 3, h, d}), {2, 0, 3, 1, 4});
    auto part = [&](int64_t i) { return reshape(slice(parts, 0, i, 1), {b, h, t, d}); };
    return {part(0), part(1), part(2)};
  }

  // softmax(q kᵀ / sqrt(D) where visible) v, heads joined again. q: [B, H, T, D], k and v: [B, H,
  // S, D], visible: [T, S] bool. Returns [B, T, C].
  Value attend(Heads x, Value visible, const Gpt2Config& c, const Dropout& drop,
               int64_t layer) const {
    Graph& g = *x.q.graph;
    const Dim b = x.q.shape()[0], t = x.q.shape()[2];
    Value q = x.q * (1 / std::sqrt(static_cast<double>(c.head_width())));
    Value scores = matmul(q, x.k, false, true);
    Value p = softmax(where(visible, scores, scalar(g, -INFINITY)));
    Value y = matmul(drop(p, stream_of(layer, 0)), x.v);
    return c_proj(reshape(transpose(y, {0, 2, 1, 3}), {b, t, Dim(c.n_embd)}));
  }

  Value mlp(Value x, const Gpt2Config& c) const {
    const Gelu form = c.activation == "gelu" ? Gelu::erf : Gelu::tanh;
    return mlp_proj(gelu(mlp_fc(x), form));
  }

  LayerNorm ln_1;
  Linear c_attn, c_proj;
  LayerNorm ln_2;
  Linear mlp_fc, mlp_proj;
};

Gpt2::Gpt2(Graph& g, const Gpt2Config& config, std::optional<Value> rng_key)
    : g_(g), config_(config), rng_key_(rng_key) {
  config_.validate();
  const std::string root = "transformer.";
  wte_ = g.parameter(root + "wte.weight", {config.vocab_size, config.n_embd});
  wpe_ = g.parameter(root + "wpe.weight", {config.n_positions, config.n_embd});
  for (int64_t layer = 0; layer < config.n_layer; ++layer)
    blocks_.push_back(std::make_unique<Block>(g, config, fmt::format("{}h.{}", root, layer)));
  ln_f_ = std::make_unique<LayerNorm>(g, root + "ln_f", config.n_embd, config.layer_norm_epsilon,
                                      config.bias);
  if (!config.tie_word_embeddings)
    lm_head_ = g.parameter("lm_head.weight", {config.vocab_size, config.n_embd});
}

Gpt2::~Gpt2() = default;

Value Gpt2::embed(Value tokens, Value positions) const {
  Scope scope(g_, "embed");
  return Dropout(rng_key_, config_.embd_pdrop)(embedding(*wte_, tokens) + positions, 0);
}

Value Gpt2::head(Value x) const {
  Scope scope(g_, "lm_head");
  return matmul(x, lm_head_ ? *lm_head_ : *wte_, false, true);
}

Value Gpt2::operator()(Value tokens) const {
  const Dim t = tokens.shape()[1];
  if (t.is_symbol() || t.size() > config_.n_positions)
    user_error("[gpt2] the length must be known and at most n_positions = {}; got {}",
               config_.n_positions, t.str());
  Value x = embed(tokens, slice(*wpe_, 0, 0, t.size()));
  Value rows = iota(g_, {t, 1}, 0), columns = iota(g_, {1, t}, 1);
  Value visible = less_equal(columns, rows);
  const Dropout attention_dropout(rng_key_, config_.attn_pdrop),
      dropout(rng_key_, config_.resid_pdrop);
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    const Block& block = *blocks_[static_cast<size_t>(i)];
    Scope layer(g_, fmt::format("h.{}", i));
    {
      Scope scope(g_, "attn");
      Value y =
          block.attend(block.split(block.ln_1(x), config_), visible, config_, attention_dropout, i);
      x = x + dropout(y, stream_of(i, 1));
    }
    Scope scope(g_, "mlp");
    x = x + dropout(block.mlp(block.ln_2(x), config_), stream_of(i, 2));
  }
  return head((*ln_f_)(x));
}

Value Gpt2::next_token_logits(Value tokens, Value position, const DecodeBinding& binding) const {
  const Dim b = tokens.shape()[0], t = tokens.shape()[1];
  Value rows = iota(g_, {t}, 0) + position;
  Value x = embed(tokens, embedding(*wpe_, rows));
  Value columns = iota(g_, {1, binding.capacity}, 1);
  Value visible = less_equal(columns, reshape(rows, {t, 1}));
  const Dropout none(std::nullopt, 0);
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    const Block& block = *blocks_[static_cast<size_t>(i)];
    Scope layer(g_, fmt::format("h.{}", i));
    {
      Scope scope(g_, "attn");
      Heads heads = block.split(block.ln_1(x), config_);
      for (auto [name, part] : {std::pair{"k", &heads.k}, std::pair{"v", &heads.v}}) {
        Value cache = g_.input(fmt::format("cache.{}.{}", name, i),
                               {b, config_.n_head, binding.capacity, config_.head_width()},
                               binding.cache, Role::cache);
        Value grown = update_slice(cache, cast(*part, binding.cache), position, 2);
        g_.update(cache, grown);
        *part = cast(grown, part->dtype());
      }
      x = x + block.attend(heads, visible, config_, none, i);
    }
    Scope scope(g_, "mlp");
    x = x + block.mlp(block.ln_2(x), config_);
  }
  x = reshape(slice(x, 1, t.size() - 1, 1), {b, Dim(config_.n_embd)});
  return head((*ln_f_)(x));
}

Graph gpt2_loss_graph(const Gpt2Config& config, int64_t batch, int64_t length) {
  Graph g;
  Value tokens = g.input("tokens", {batch, length}, DType::i32);
  Value targets = g.input("targets", {batch, length}, DType::i32);
  Value scale = g.input("loss_scale", {}, DType::f32);
  std::optional<Value> key;
  if (config.resid_pdrop > 0 || config.embd_pdrop > 0 || config.attn_pdrop > 0)
    key = g.input("rng_key", {2}, DType::i32);
  Gpt2 model(g, config, key);
  Value logits = model(tokens);
  Scope scope(g, "loss");
  g.output("loss", sum(cross_entropy(logits, targets).losses, {0, 1}) * scale);
  return g;
}

Graph gpt2_logits_graph(const Gpt2Config& config, Dim batch, Dim length) {
  Graph g;
  Value tokens = g.input("tokens", {batch, length}, DType::i32);
  Gpt2 model(g, config);
  g.output("logits", model(tokens));
  return g;
}

Graph gpt2_decode_graph(const Gpt2Config& config, const DecodeBinding& binding) {
  if (binding.capacity < 1 || binding.capacity > config.n_positions)
    user_error("[gpt2] the cache must have room for 1 to n_positions = {} positions; got {}",
               config.n_positions, binding.capacity);
  Graph g;
  Value tokens = g.input("tokens", {binding.batch, binding.length}, DType::i32);
  Value position = g.input("position", {}, DType::i32);
  Gpt2 model(g, config);
  g.output("logits", model.next_token_logits(tokens, position, binding));
  return g;
}

}  // namespace brrr::models
