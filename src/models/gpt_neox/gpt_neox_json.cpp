// config.json of a GPT-NeoX, both ways.

#include <algorithm>

#include "base/errors.h"
#include "models/config_limits.h"
#include "models/config_reader.h"
#include "models/gpt_neox/gpt_neox_config.h"
#include "models/rope_json.h"

namespace brrr::models {

using io::Json;

void GptNeoxConfig::validate() const {
  const ConfigLimits limits("gpt_neox");
  limits.size("vocab_size", vocab_size, int64_t{1} << 24);
  limits.size("max_position_embeddings", max_position_embeddings, int64_t{1} << 24);
  limits.size("hidden_size", hidden_size, int64_t{1} << 18);
  limits.size("num_hidden_layers", num_hidden_layers, 4096);
  limits.size("num_attention_heads", num_attention_heads, hidden_size);
  limits.size("intermediate_size", intermediate_size, int64_t{1} << 20);
  if (hidden_size % num_attention_heads != 0)
    limits.fail("hidden_size",
                fmt::format("a multiple of num_attention_heads {}", num_attention_heads),
                hidden_size);
  check_rope(rope, "gpt_neox");
  if (const int64_t columns = rotated_width(); columns < 2 || columns % 2 != 0)
    limits.fail("the number of rotary columns of a head (partial_rotary_factor, or rotary_pct)",
                "even and at least 2", fmt::format("{} of {}", columns, head_width()));
  limits.epsilon("layer_norm_eps", layer_norm_eps);
  limits.deviation("initializer_range", initializer_range);
  limits.probability("attention_dropout", attention_dropout);
  limits.probability("hidden_dropout", hidden_dropout);
}

namespace {

void refuse_neox_variants(const GptNeoxConfig& c, const ConfigReader& keys) {
  if (const int64_t width = keys.integer("head_dim", c.head_width()); width != c.head_width())
    user_error(
        "{}: head_dim = {} is not supported; expected hidden_size / num_attention_heads = {}",
        keys.what(), width, c.head_width());
  keys.refuse_quantization();
}

Json written_neox(const GptNeoxConfig& c, DType stored) {
  return {{"architectures", {"GPTNeoXForCausalLM"}},
          {"attention_bias", c.attention_bias},
          {"attention_dropout", c.attention_dropout},
          {"bos_token_id", ids_text({c.bos_token_id}, c.vocab_size)},
          {"dtype", dtype_text(stored)},
          {"eos_token_id", ids_text(c.eos_token_ids, c.vocab_size)},
          {"hidden_act", name_of(c.hidden_act)},
          {"hidden_dropout", c.hidden_dropout},
          {"hidden_size", c.hidden_size},
          {"initializer_range", c.initializer_range},
          {"intermediate_size", c.intermediate_size},
          {"layer_norm_eps", c.layer_norm_eps},
          {"max_position_embeddings", c.max_position_embeddings},
          {"model_type", "gpt_neox"},
          {"num_attention_heads", c.num_attention_heads},
          {"num_hidden_layers", c.num_hidden_layers},
          {"rope_scaling", written_rope(c.rope)},
          {"rotary_emb_base", c.rope.theta},
          {"rotary_pct", c.rope.partial_rotary_factor},
          {"tie_word_embeddings", c.tie_word_embeddings},
          {"torch_dtype", dtype_text(stored)},
          {"use_cache", true},
          {"use_parallel_residual", c.use_parallel_residual},
          {"vocab_size", c.vocab_size}};
}

}  // namespace

GptNeoxConfig parse_gpt_neox_config(std::string_view text, const std::string& what) {
  const ConfigReader keys(text, what,
                          "the configuration needs vocab_size, hidden_size, intermediate_size, "
                          "num_hidden_layers and num_attention_heads");
  GptNeoxConfig c;
  c.vocab_size = keys.required_integer("vocab_size");
  c.hidden_size = keys.required_integer("hidden_size");
  c.intermediate_size = keys.required_integer("intermediate_size");
  c.num_hidden_layers = keys.required_integer("num_hidden_layers");
  c.num_attention_heads = keys.required_integer("num_attention_heads");
  c.max_position_embeddings = keys.integer("max_position_embeddings", c.max_position_embeddings);
  c.layer_norm_eps = keys.number("layer_norm_eps", c.layer_norm_eps);
  c.initializer_range = keys.number("initializer_range", c.initializer_range);
  c.attention_dropout = keys.number("attention_dropout", c.attention_dropout);
  c.hidden_dropout = keys.number("hidden_dropout", c.hidden_dropout);
  c.hidden_act = read_activation(keys, "hidden_act", Activation::gelu);
  c.use_parallel_residual = keys.flag("use_parallel_residual", c.use_parallel_residual);
  c.attention_bias = keys.flag("attention_bias", c.attention_bias);
  c.tie_word_embeddings = keys.flag("tie_word_embeddings", c.tie_word_embeddings);
  // The architecture's own names, then those that other architectures use; an object with rotary
  // settings goes before both.
  c.rope.theta = keys.number("rotary_emb_base", keys.number("rope_theta", c.rope.theta));
  c.rope.partial_rotary_factor =
      keys.number("rotary_pct", keys.number("partial_rotary_factor", c.rope.partial_rotary_factor));
  read_rope(c.rope, keys, c.max_position_embeddings);
  // Absent is not null: the class of transformers has defaults.
  c.bos_token_id = keys.find("bos_token_id") ? keys.integer("bos_token_id", -1) : 0;
  c.eos_token_ids =
      keys.find("eos_token_id") ? keys.integers("eos_token_id") : std::vector<int64_t>{2};
  try {
    c.validate();
  } catch (const UserError& e) {
    user_error("{}: {}", what, e.what());
  }
  refuse_neox_variants(c, keys);
  c.unknown_keys =
      keys.unknown_keys(written_neox(c, DType::f32),
                        {"head_dim", "partial_rotary_factor", "rope_parameters", "rope_theta"});
  return c;
}

std::string gpt_neox_config_json(const GptNeoxConfig& config, DType stored) {
  return config_text(written_neox(config, stored), config.unknown_keys);
}

}  // namespace brrr::models
