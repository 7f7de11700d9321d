// The graphs of the family (Touvron et al. 2023): pre-norm blocks with RMSNorm, rotary positions,
// grouped-query attention and SwiGLU.
#include <cmath>
#include <string>

#include "models/llama/llama_config.h"
#include "models/rotary_attention.h"

namespace brrr::models {
namespace {

RotaryAttentionSizes attention_sizes(const LlamaConfig& c) {
  return {.width = c.hidden_size,
          .heads = c.num_attention_heads,
          .kv_heads = c.num_key_value_heads,
          .head_width = c.head_dim,
          .scale = 1 / std::sqrt(static_cast<double>(c.head_dim)),
          .dropout = c.attention_dropout,
          .qkv_bias = c.qkv_bias,
          .output_bias = c.output_bias,
          .qk_norm = c.qk_norm,
          .norm_eps = c.rms_norm_eps};
}

struct LlamaBlock {
  LlamaBlock(Parameters& p, const std::string& name, const LlamaConfig& c)
      : input_norm(p, name + ".input_layernorm", c.hidden_size, c.rms_norm_eps),
        attention(p, name + ".self_attn", attention_sizes(c)),
        mlp_norm(p, name + ".post_attention_layernorm", c.hidden_size, c.rms_norm_eps),
        mlp(p, name + ".mlp", c.hidden_size, c.intermediate_size, c.mlp_bias, Activation::silu) {}

  RmsNorm input_norm;
  RotaryAttention attention;
  RmsNorm mlp_norm;
  GatedMlp mlp;
};

class Llama final : public CausalStack<LlamaBlock, RmsNorm> {
 public:
  Llama(Parameters& p, const LlamaConfig& config, std::optional<Value> rng_key, CausalHead head)
      : CausalStack(p, "model.embed_tokens.weight", config.vocab_size, config.hidden_size, head),
        c_(config),
        rng_key_(rng_key) {
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) add_block(p, "model.layers", c_);
    finish(p, head, "model.norm", c_.hidden_size, c_.rms_norm_eps);
  }

  Value trunk(const CausalRows& rows) const override {
    Value x;
    RotaryPositions at;
    {
      Scope scope(g_, "embed");
      x = embedding(embed_, rows.tokens);
      at = {rotary_tables(g_, c_.rope, c_.head_dim,
                          rows.table_rows(longest_context(c_.rope, c_.max_position_embeddings))),
            rows.positions_of_rows()};
    }
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) {
      const LlamaBlock& block = blocks_[static_cast<size_t>(i)];
      Scope layer(g_, fmt::format("h.{}", i));
      {
        Scope scope(g_, "attn");
        x = x + block.attention(block.input_norm(x), i, c_.window_of(i), rows, at, rng_key_);
      }
      Scope scope(g_, "mlp");
      x = x + block.mlp(block.mlp_norm(x));
    }
    return x;
  }

 private:
  const LlamaConfig& c_;
  std::optional<Value> rng_key_;
};

}  // namespace

std::unique_ptr<CausalNet> LlamaConfig::net(Parameters& p, std::optional<Value> rng_key,
                                            CausalHead head) const {
  return std::make_unique<Llama>(p, *this, rng_key, head);
}

}  // namespace brrr::models
