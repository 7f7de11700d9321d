// Gemma 3 (Gemma Team 2025): embeddings scaled by the root of the width, norms before and behind
// attention and MLP, norms of q and k, GeGLU, five layers with a window for each that sees all,
// with rotary bases of their own.
#include <cmath>
#include <string>

#include "models/gemma3/gemma3_config.h"
#include "models/rotary_attention.h"

namespace brrr::models {
namespace {

RotaryAttentionSizes gemma_attention(const Gemma3Config& c) {
  return {.width = c.hidden_size,
          .heads = c.num_attention_heads,
          .kv_heads = c.num_key_value_heads,
          .head_width = c.head_dim,
          .scale = 1 / std::sqrt(static_cast<double>(c.query_pre_attn_scalar)),
          .dropout = c.attention_dropout,
          .qkv_bias = c.attention_bias,
          .output_bias = c.attention_bias,
          .qk_norm = true,
          .norm_eps = c.rms_norm_eps,
          .norm_scale = RmsNorm::Scale::one_plus_weight};
}

struct GemmaBlock {
  GemmaBlock(Parameters& p, const std::string& name, const Gemma3Config& c)
      : before_attention(norm(p, name + ".input_layernorm", c)),
        attention(p, name + ".self_attn", gemma_attention(c)),
        behind_attention(norm(p, name + ".post_attention_layernorm", c)),
        before_mlp(norm(p, name + ".pre_feedforward_layernorm", c)),
        mlp(p, name + ".mlp", c.hidden_size, c.intermediate_size, false, Activation::gelu_new),
        behind_mlp(norm(p, name + ".post_feedforward_layernorm", c)) {}

  static RmsNorm norm(Parameters& p, const std::string& name, const Gemma3Config& c) {
    return {p, name, c.hidden_size, c.rms_norm_eps, RmsNorm::Scale::one_plus_weight};
  }

  RmsNorm before_attention;
  RotaryAttention attention;
  RmsNorm behind_attention, before_mlp;
  GatedMlp mlp;
  RmsNorm behind_mlp;
};

class Gemma3 final : public CausalStack<GemmaBlock, RmsNorm> {
 public:
  Gemma3(Parameters& p, const Gemma3Config& config, std::optional<Value> rng_key, CausalHead head)
      : CausalStack(p, "model.embed_tokens.weight", config.vocab_size, config.hidden_size, head),
        c_(config),
        rng_key_(rng_key) {
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) add_block(p, "model.layers", c_);
    finish(p, head, "model.norm", c_.hidden_size, c_.rms_norm_eps, RmsNorm::Scale::one_plus_weight);
  }

  Value trunk(const CausalRows& rows) const override {
    Value x;
    RotaryPositions global, local;
    {
      Scope scope(g_, "embed");
      x = embedding(embed_, rows.tokens) * std::sqrt(static_cast<double>(c_.hidden_size));
      global = positions(c_.rope, rows);
      local = positions(c_.local_rope, rows);
    }
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) {
      const GemmaBlock& block = blocks_[static_cast<size_t>(i)];
      const bool slides = c_.slides_in(i);
      Scope layer(g_, fmt::format("h.{}", i));
      {
        Scope scope(g_, "attn");
        const Value y =
            block.attention(block.before_attention(x), i, slides ? c_.sliding_window : 0, rows,
                            slides ? local : global, rng_key_);
        x = x + block.behind_attention(y);
      }
      Scope scope(g_, "mlp");
      x = x + block.behind_mlp(block.mlp(block.before_mlp(x)));
    }
    return x;
  }

 private:
  RotaryPositions positions(const RopeConfig& rope, const CausalRows& rows) const {
    const int64_t longest = longest_context(c_.rope, c_.max_position_embeddings);
    return {rotary_tables(g_, rope, c_.head_dim, rows.table_rows(longest)),
            rows.positions_of_rows()};
  }

  const Gemma3Config& c_;
  std::optional<Value> rng_key_;
};

}  // namespace

std::unique_ptr<CausalNet> Gemma3Config::net(Parameters& p, std::optional<Value> rng_key,
                                             CausalHead head) const {
  return std::make_unique<Gemma3>(p, *this, rng_key, head);
}

}  // namespace brrr::models
