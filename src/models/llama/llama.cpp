#include "models/llama/llama.h"

#include <array>
#include <cmath>

#include "base/errors.h"
#include "models/layers.h"

namespace brrr::models {
namespace {

class RmsNorm {
 public:
  RmsNorm(Graph& g, const std::string& name, int64_t width, double eps)
      : weight_(g.parameter(name + ".weight", {width})), eps_(eps) {}
  Value operator()(Value x) const { return rms_norm(x, weight_, eps_).y; }

 private:
  Value weight_;
  double eps_;
};

/// What all layers share: cosines and sines [positions, D / 2] f32, and where the rows stand.
struct Positions {
  Value cos, sin;
  Value rows;                  // i32[T]: where each row of tokens stands
  std::optional<Value> first;  // i32[]: where the first does; absent: 0
};

/// What an attention layer does with its keys and values: nothing, or it keeps them in a cache.
using KeepCache = std::function<void(int64_t layer, Value& k, Value& v)>;

struct Block {
  Block(Graph& g, const LlamaConfig& c, const std::string& name)
      : input_norm(g, name + ".input_layernorm", c.hidden_size, c.rms_norm_eps),
        q_proj(g, name + ".self_attn.q_proj", c.hidden_size, c.num_attention_heads * c.head_dim,
               c.qkv_bias),
        k_proj(g, name + ".self_attn.k_proj", c.hidden_size, c.num_key_value_heads * c.head_dim,
               c.qkv_bias),
        v_proj(g, name + ".self_attn.v_proj", c.hidden_size, c.num_key_value_heads * c.head_dim,
               c.qkv_bias) {
    if (c.qk_norm) {
      q_norm.emplace(g, name + ".self_attn.q_norm", c.head_dim, c.rms_norm_eps);
      k_norm.emplace(g, name + ".self_attn.k_norm", c.head_dim, c.rms_norm_eps);
    }
    o_proj.emplace(g, name + ".self_attn.o_proj", c.num_attention_heads * c.head_dim, c.hidden_size,
                   c.output_bias);
    mlp_norm.emplace(g, name + ".post_attention_layernorm", c.hidden_size, c.rms_norm_eps);
    gate_proj.emplace(g, name + ".mlp.gate_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
    up_proj.emplace(g, name + ".mlp.up_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
    down_proj.emplace(g, name + ".mlp.down_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
  }

  /// x: [B, T, heads * D]. Each head is normalised where the model does that, and turned.
  Value turned(Value x, const std::optional<RmsNorm>& norm, const Positions& at,
               const LlamaConfig& c) const {
    const Shape rows = x.shape();
    Shape heads = rows;
    heads[-1] = Dim(rows.size(-1) / c.head_dim);
    heads.push_back(Dim(c.head_dim));
    x = reshape(x, heads);
    if (norm) x = (*norm)(x);
    return reshape(rotary(x, at.rows, at.cos, at.sin), rows);
  }

  Value attend(Value x, int64_t layer, const Positions& at, const LlamaConfig& c,
               const std::optional<Value>& rng_key, const KeepCache& keep) const {
    Value q = turned(q_proj(x), q_norm, at, c), k = turned(k_proj(x), k_norm, at, c), v = v_proj(x);
    keep(layer, k, v);
    AttentionPlaces places{.heads = c.num_attention_heads,
                           .kv_heads = c.num_key_value_heads,
                           .width = c.head_dim,
                           .value_width = c.head_dim,
                           .q = {0, 0, true},
                           .k = {1, 0, true},
                           .v = {2, 0, true},
                           .y_in_rows = true};
    AttentionOptions options;
    options.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    options.causal = true;
    options.window = c.window_of(layer);
    options.position = at.first;
    options.p = rng_key ? c.attention_dropout : 0;
    options.key = rng_key;
    options.stream = layer;
    const std::array<Value, 3> sources{q, k, v};
    return (*o_proj)(attention(sources, places, options).y);
  }

  Value mlp(Value x) const { return (*down_proj)(silu((*gate_proj)(x)) * (*up_proj)(x)); }

  RmsNorm input_norm;
  Projection q_proj, k_proj, v_proj;
  std::optional<RmsNorm> q_norm, k_norm;
  std::optional<Projection> o_proj;
  std::optional<RmsNorm> mlp_norm;
  std::optional<Projection> gate_proj, up_proj, down_proj;
};

class Llama {
 public:
  Llama(Graph& g, const LlamaConfig& config, std::optional<Value> rng_key = std::nullopt)
      : g_(g), c_(config), rng_key_(rng_key) {
    c_.validate();
    embed_ = g.parameter("model.embed_tokens.weight", {c_.vocab_size, c_.hidden_size});
    for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer)
      blocks_.emplace_back(g, c_, fmt::format("model.layers.{}", layer));
    norm_.emplace(g, "model.norm", c_.hidden_size, c_.rms_norm_eps);
    if (!c_.tie_word_embeddings)
      head_ = g.parameter("lm_head.weight", {c_.vocab_size, c_.hidden_size});
  }

  /// tokens: [B, T] i32, of which the first stands at `first`; the tables have `positions` rows.
  /// Returns [B, T, C], before the last norm.
  Value trunk(Value tokens, int64_t positions, std::optional<Value> first,
              const KeepCache& keep) const {
    Value x;
    Positions at;
    {
      Scope scope(g_, "embed");
      x = embedding(*embed_, tokens);
      at = tables(positions);
      at.rows = iota(g_, {tokens.shape()[1]}, 0);
      if (first) at.rows = at.rows + *first;
      at.first = first;
    }
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) {
      const Block& block = blocks_[static_cast<size_t>(i)];
      Scope layer(g_, fmt::format("h.{}", i));
      {
        Scope scope(g_, "attn");
        x = x + block.attend(block.input_norm(x), i, at, c_, rng_key_, keep);
      }
      Scope scope(g_, "mlp");
      x = x + block.mlp((*block.mlp_norm)(x));
    }
    return x;
  }
  Value logits(Value x) const {
    Value y = (*norm_)(x);
    Scope scope(g_, "lm_head");
    return matmul(y, head_ ? *head_ : *embed_, false, true);
  }

 private:
  /// Constants: they depend on no input.
  Positions tables(int64_t positions) const {
    const auto [cos, sin] = rotary_tables(g_, c_.rope, c_.head_dim, positions);
    return {cos, sin, {}, std::nullopt};
  }

  Graph& g_;
  LlamaConfig c_;
  std::optional<Value> rng_key_;
  std::optional<Value> embed_, head_;
  std::vector<Block> blocks_;
  std::optional<RmsNorm> norm_;
};

void check_length(Dim length, const LlamaConfig& c) {
  if (length.is_symbol() || length.size() > c.max_position_embeddings)
    user_error("[{}] the length must be known and at most max_position_embeddings = {}; got {}",
               name_of(c.type), c.max_position_embeddings, length.str());
}

void keep_nothing(int64_t, Value&, Value&) {}

}  // namespace

Graph llama_loss_graph(const LlamaConfig& config, int64_t batch, int64_t length) {
  check_length(Dim(length), config);
  Graph g;
  Value tokens = g.input("tokens", {batch, length}, DType::i32);
  Value targets = g.input("targets", {batch, length}, DType::i32);
  Value scale = g.input("loss_scale", {}, DType::f32);
  std::optional<Value> key;
  if (config.attention_dropout > 0) key = g.input("rng_key", {2}, DType::i32);
  const Llama model(g, config, key);
  Value logits = model.logits(model.trunk(tokens, length, std::nullopt, keep_nothing));
  Scope scope(g, "loss");
  g.output("loss", sum(cross_entropy(logits, targets).losses, {0, 1}) * scale);
  return g;
}

Graph llama_logits_graph(const LlamaConfig& config, Dim batch, Dim length) {
  check_length(length, config);
  Graph g;
  Value tokens = g.input("tokens", {batch, length}, DType::i32);
  const Llama model(g, config);
  g.output("logits", model.logits(model.trunk(tokens, length.size(), std::nullopt, keep_nothing)));
  return g;
}

Graph llama_decode_graph(const LlamaConfig& config, const DecodeBinding& binding) {
  if (binding.capacity < 1 || binding.capacity > config.max_position_embeddings)
    user_error("[{}] the cache must have room for 1 to {} positions; got {}", name_of(config.type),
               config.max_position_embeddings, binding.capacity);
  Graph g;
  Value tokens = g.input("tokens", {binding.batch, binding.length}, DType::i32);
  Value position = g.input("position", {}, DType::i32);
  const Llama model(g, config);
  const int64_t width = config.num_key_value_heads * config.head_dim;
  // Keys are kept as they were turned; a row of the cache is that of a position.
  const KeepCache keep = [&](int64_t layer, Value& k, Value& v) {
    for (auto [name, part] : {std::pair{"k", &k}, std::pair{"v", &v}}) {
      Value cache = g.input(fmt::format("cache.{}.{}", name, layer),
                            {binding.batch, binding.capacity, width}, binding.cache, Role::cache);
      Value grown = update_slice(cache, cast(*part, binding.cache), position, 1);
      g.update(cache, grown);
      *part = cast(grown, part->dtype());
    }
  };
  Value x = model.trunk(tokens, binding.capacity, position, keep);
  x = reshape(slice(x, 1, binding.length - 1, 1), {binding.batch, config.hidden_size});
  g.output("logits", model.logits(x));
  return g;
}

}  // namespace brrr::models
