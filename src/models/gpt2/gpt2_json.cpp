// config.json of a GPT-2, both ways.

#include "models/config_reader.h"
#include "models/gpt2/gpt2_model.h"

namespace brrr::models {
namespace {

using io::Json;

constexpr int64_t kNoToken = -1;

Json written(const Gpt2Config& c, DType stored) {
  Json out = {{"activation_function", name_of(c.activation)},
              {"architectures", {"GPT2LMHeadModel"}},
              {"attn_pdrop", c.attn_pdrop},
              {"bos_token_id", ids_text({c.bos_token_id}, c.vocab_size)},
              {"dtype", dtype_text(stored)},
              {"embd_pdrop", c.embd_pdrop},
              {"eos_token_id", ids_text({c.eos_token_id}, c.vocab_size)},
              {"initializer_range", c.initializer_range},
              {"layer_norm_epsilon", c.layer_norm_epsilon},
              {"model_type", "gpt2"},
              {"n_ctx", c.n_positions},
              {"n_embd", c.n_embd},
              {"n_head", c.n_head},
              {"n_inner", c.n_inner > 0 ? Json(c.n_inner) : Json()},
              {"n_layer", c.n_layer},
              {"n_positions", c.n_positions},
              {"reorder_and_upcast_attn", c.reorder_and_upcast_attn},
              {"resid_pdrop", c.resid_pdrop},
              {"scale_attn_by_inverse_layer_idx", c.scale_attn_by_inverse_layer_idx},
              {"scale_attn_weights", c.scale_attn_weights},
              {"tie_word_embeddings", c.tie_word_embeddings},
              {"torch_dtype", dtype_text(stored)},
              {"use_cache", true},
              {"vocab_size", c.vocab_size}};
  if (!c.bias) out["bias"] = false;
  return out;
}

}  // namespace

Gpt2Config parse_gpt2_config(std::string_view text, const std::string& what) {
  const ConfigReader keys(text, what,
                          "a GPT-2 configuration needs vocab_size, n_positions, n_embd, n_layer "
                          "and n_head");
  Gpt2Config c;
  c.vocab_size = keys.required_integer("vocab_size");
  c.n_positions = keys.required_integer("n_positions");
  c.n_embd = keys.required_integer("n_embd");
  c.n_layer = keys.required_integer("n_layer");
  c.n_head = keys.required_integer("n_head");
  c.resid_pdrop = keys.number("resid_pdrop", c.resid_pdrop);
  c.embd_pdrop = keys.number("embd_pdrop", c.embd_pdrop);
  c.attn_pdrop = keys.number("attn_pdrop", c.attn_pdrop);
  c.layer_norm_epsilon = keys.number("layer_norm_epsilon", c.layer_norm_epsilon);
  c.initializer_range = keys.number("initializer_range", c.initializer_range);
  c.activation = read_activation(keys, "activation_function", Activation::gelu_new);
  if (const auto inner = keys.optional_integer("n_inner")) {
    if (*inner <= 0) user_error("{}: n_inner must be at least 1; got {}", what, *inner);
    if (*inner != c.mlp_width()) c.n_inner = *inner;
  }
  c.scale_attn_weights = keys.flag("scale_attn_weights", true);
  c.scale_attn_by_inverse_layer_idx = keys.flag("scale_attn_by_inverse_layer_idx", false);
  c.reorder_and_upcast_attn = keys.flag("reorder_and_upcast_attn", false);
  c.tie_word_embeddings = keys.flag("tie_word_embeddings", true);
  c.bias = keys.flag("bias", true);
  if (keys.find("bos_token_id"))
    c.bos_token_id = keys.optional_integer("bos_token_id").value_or(kNoToken);
  if (keys.find("eos_token_id"))
    c.eos_token_id = keys.optional_integer("eos_token_id").value_or(kNoToken);
  try {
    c.validate();
  } catch (const UserError& e) {
    user_error("{}: {}", what, e.what());
  }
  keys.insist("add_cross_attention", false);
  keys.refuse_quantization();
  c.unknown_keys = keys.unknown_keys(written(c, DType::f32), {"bias"});
  return c;
}

std::string gpt2_config_json(const Gpt2Config& config, DType stored) {
  return config_text(written(config, stored), config.unknown_keys);
}

}  // namespace brrr::models
