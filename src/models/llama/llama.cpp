#include "models/llama/llama.h"

#include <array>
#include <cmath>
#include <string>
#include <vector>

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
  RotaryTables tables;
  Value places;  // i32[T] or i32[B, T]
};

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
    return reshape(rotary(x, at.places, at.tables.cos, at.tables.sin), rows);
  }

  /// Keys are kept as they were turned.
  Value attend(Value x, int64_t layer, const CausalRows& rows, const Positions& at,
               const LlamaConfig& c, const std::optional<Value>& rng_key) const {
    Value q = turned(q_proj(x), q_norm, at, c), k = turned(k_proj(x), k_norm, at, c), v = v_proj(x);
    k = rows.kept("key", layer, k, c.head_dim);
    v = rows.kept("value", layer, v, c.head_dim);
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
    options.position = rows.first;
    options.mask = rows.padding;
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

class Llama final : public CausalNet {
 public:
  Llama(Graph& g, const LlamaConfig& config, std::optional<Value> rng_key)
      : g_(g), c_(config), rng_key_(rng_key) {
    embed_ = g.parameter("model.embed_tokens.weight", {c_.vocab_size, c_.hidden_size});
    for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer)
      blocks_.emplace_back(g, c_, fmt::format("model.layers.{}", layer));
    norm_.emplace(g, "model.norm", c_.hidden_size, c_.rms_norm_eps);
    if (!c_.tie_word_embeddings)
      head_ = g.parameter("lm_head.weight", {c_.vocab_size, c_.hidden_size});
  }

  Value trunk(const CausalRows& rows) const override {
    Value x;
    Positions at;
    {
      Scope scope(g_, "embed");
      x = embedding(*embed_, rows.tokens);
      at = {rotary_tables(g_, c_.rope, c_.head_dim,
                          rows.table_rows(longest_context(c_.rope, c_.max_position_embeddings))),
            rows.positions_of_rows()};
    }
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) {
      const Block& block = blocks_[static_cast<size_t>(i)];
      Scope layer(g_, fmt::format("h.{}", i));
      {
        Scope scope(g_, "attn");
        x = x + block.attend(block.input_norm(x), i, rows, at, c_, rng_key_);
      }
      Scope scope(g_, "mlp");
      x = x + block.mlp((*block.mlp_norm)(x));
    }
    return x;
  }

  Value normed(Value x) const override { return (*norm_)(x); }

  Value logits(Value x) const override {
    x = normed(x);
    Scope scope(g_, "lm_head");
    return matmul(x, head_ ? *head_ : *embed_, false, true);
  }

 private:
  Graph& g_;
  const LlamaConfig& c_;
  std::optional<Value> rng_key_;
  std::optional<Value> embed_, head_;
  std::vector<Block> blocks_;
  std::optional<RmsNorm> norm_;
};

}  // namespace

std::unique_ptr<CausalNet> llama_net(Graph& g, const LlamaConfig& config,
                                     std::optional<Value> rng_key) {
  return std::make_unique<Llama>(g, config, rng_key);
}

}  // namespace brrr::models
