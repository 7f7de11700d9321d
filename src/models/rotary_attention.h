#pragma once
// Attention of causal language models with rotary positions and groups of queries that share keys
// and values: Llama and the architectures that follow it.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/causal_lm.h"
#include "models/config_table.h"
#include "models/layers.h"

namespace brrr::models {

struct RotaryAttentionSizes {
  int64_t width = 0;                // of the model, C
  int64_t heads = 0, kv_heads = 0;  // H and K, which divides H
  int64_t head_width = 0;           // D, even
  double scale = 0;                 // of scores
  double dropout = 0;               // of probabilities
  bool qkv_bias = false, output_bias = false;
  /// RMSNorm over each head of q and k, before they are rotated.
  bool qk_norm = false;
  double norm_eps = 0;
  RmsNorm::Scale norm_scale = RmsNorm::Scale::weight;
};

class RotaryAttention {
 public:
  /// Parameters `name`.q_proj, k_proj, v_proj, o_proj, and q_norm and k_norm where there are some.
  RotaryAttention(Parameters& p, const std::string& name, const RotaryAttentionSizes& sizes);

  /// x: [B, T, C] or [N, C]. A query sees itself and `window - 1` keys before it; 0: all before it.
  /// Keys are cached as they were rotated.
  Value operator()(Value x, int64_t layer, int64_t window, const CausalRows& rows,
                   const RotaryPositions& at, const std::optional<Value>& rng_key) const;

 private:
  Value rotated(Value x, const std::optional<RmsNorm>& norm, const RotaryPositions& at) const;

  RotaryAttentionSizes s_;
  Projection q_, k_, v_;
  std::optional<RmsNorm> q_norm_, k_norm_;
  std::optional<Projection> output_;  // declared behind the norms
};

/// The sizes of a model whose layers are RotaryAttention; `c` has the field names of Llama's
/// config.json.
template <typename C>
ModelSizes rotary_sizes(const C& c) {
  return {.vocabulary = c.vocab_size,
          .context = longest_context(c.rope, c.max_position_embeddings),
          .layers = c.num_hidden_layers,
          .heads = c.num_attention_heads,
          .width = c.hidden_size,
          .query_width = c.num_attention_heads * c.head_dim,
          .cache_width = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim,
          .cache_heads = 2 * c.num_hidden_layers * c.num_key_value_heads};
}

/// Derives the sizes of heads that options leave at 0. Throws UserError (exit 2) where they do not
/// go together.
void complete_heads(int64_t width, int64_t heads, int64_t& kv_heads, int64_t& head_width);
/// Adds the row of the number of key and value heads, and of a head's width, with their options.
template <typename C>
void add_groups(ConfigTable<C>& t) {
  t.size("num_key_value_heads", &C::num_key_value_heads, 1 << 18)
      .option("num-key-value-heads",
              "key and value heads, shared by groups of heads (0: as many as heads)",
              {"n-kv-head", "n-head-kv", "num-kv-heads"}, 0);
  t.size("head_dim", &C::head_dim, 1 << 12)
      .option("head-dim", "width of a head (0: n-embd / n-head)", {}, 0);
}
/// Throws UserError where groups of heads do not go together, or are too many.
void check_groups(const ConfigLimits& limits, int64_t heads, int64_t kv_heads, int64_t head_width);

/// The values of "layer_types" in a config.json.
namespace layer_kinds {
inline constexpr const char* kSliding = "sliding_attention";
inline constexpr const char* kFull = "full_attention";
}  // namespace layer_kinds

/// Reads "layer_types": whether each layer's queries see a window only; empty where the key is
/// absent. Throws UserError.
std::vector<bool> read_layer_types(const ConfigReader& keys);
/// The value of "layer_types" for `layers` layers.
io::Json written_layer_types(int64_t layers, const std::function<bool(int64_t layer)>& slides);

/// The tensor names of Llama, and of architectures that name their parameters as it does.
FileNames rotary_file_names(bool is_tied);

}  // namespace brrr::models
