// config.json of a GPT-NeoX, both ways.

#include <algorithm>

#include "base/errors.h"
#include "models/config_reader.h"
#include "models/gpt_neox/gpt_neox_config.h"
#include "models/rope_json.h"

namespace brrr::models {

using io::Json;

const std::string& name_of(NeoxActivation activation) {
  static const std::string names[] = {"gelu", "gelu_new", "relu", "silu"};
  return names[static_cast<size_t>(activation)];
}

void GptNeoxConfig::validate() const {
  const auto fail = [](const char* name, const std::string& expected, auto found) {
    user_error("[gpt_neox config] {} must be {}; got {}", name, expected, found);
  };
  const auto size = [&](const char* name, int64_t value, int64_t limit) {
    if (value < 1 || value > limit) fail(name, fmt::format("between 1 and {}", limit), value);
  };
  size("vocab_size", vocab_size, int64_t{1} << 24);
  size("max_position_embeddings", max_position_embeddings, int64_t{1} << 24);
  size("hidden_size", hidden_size, int64_t{1} << 18);
  size("num_hidden_layers", num_hidden_layers, 4096);
  size("num_attention_heads", num_attention_heads, hidden_size);
  size("intermediate_size", intermediate_size, int64_t{1} << 20);
  if (hidden_size % num_attention_heads != 0)
    fail("hidden_size", fmt::format("a multiple of num_attention_heads {}", num_attention_heads),
         hidden_size);
  check_rope(rope, "gpt_neox");
  if (const int64_t columns = rotated_width(); columns < 2 || columns % 2 != 0)
    fail("the number of columns of a head that turn (partial_rotary_factor, or rotary_pct)",
         "even and at least 2", fmt::format("{} of {}", columns, head_width()));
  if (!(layer_norm_eps > 0 && layer_norm_eps < 1))
    fail("layer_norm_eps", "between 0 and 1", layer_norm_eps);
  if (!(initializer_range >= 0 && initializer_range <= 10))
    fail("initializer_range", "between 0 and 10", initializer_range);
  for (const auto& [name, value] : {std::pair{"attention_dropout", attention_dropout},
                                    std::pair{"hidden_dropout", hidden_dropout}})
    if (!(value >= 0 && value < 1)) fail(name, "a probability in [0, 1)", value);
}

namespace {

NeoxActivation neox_activation(const ConfigReader& keys) {
  const std::string name = keys.text("hidden_act", "gelu");
  if (name == "gelu") return NeoxActivation::gelu;
  // Three spellings of one formula.
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh")
    return NeoxActivation::gelu_new;
  if (name == "relu") return NeoxActivation::relu;
  if (name == "silu" || name == "swish") return NeoxActivation::silu;
  user_error(
      "{}: hidden_act = {} is not supported; expected gelu, gelu_new, gelu_fast, "
      "gelu_pytorch_tanh, relu, silu or swish",
      keys.what(), io::in_quotes(name));
}

void refuse_neox_variants(const GptNeoxConfig& c, const ConfigReader& keys) {
  if (const int64_t width = keys.integer("head_dim", c.head_width()); width != c.head_width())
    user_error(
        "{}: head_dim = {} is not supported; expected hidden_size / num_attention_heads = {}",
        keys.what(), width, c.head_width());
  if (keys.has("quantization_config"))
    user_error("{}: quantization_config is not supported; expected weights in f32, bf16 or f16",
               keys.what());
}

Json written_neox(const GptNeoxConfig& c, DType stored) {
  const char* dtype = stored == DType::bf16 ? "bfloat16" : "float32";
  const auto is_token = [&](int64_t id) { return id >= 0 && id < c.vocab_size; };
  Json ends = Json::array();
  for (const int64_t id : c.eos_token_ids)
    if (is_token(id)) ends.push_back(id);
  if (ends.size() == 1)
    ends = Json(ends[0].get<int64_t>());
  else if (ends.empty())
    ends = Json();
  return {{"architectures", {"GPTNeoXForCausalLM"}},
          {"attention_bias", c.attention_bias},
          {"attention_dropout", c.attention_dropout},
          {"bos_token_id", is_token(c.bos_token_id) ? Json(c.bos_token_id) : Json()},
          {"dtype", dtype},
          {"eos_token_id", ends},
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
          {"torch_dtype", dtype},
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
  c.hidden_act = neox_activation(keys);
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
