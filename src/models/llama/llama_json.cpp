// config.json of the Llama family, both ways.

#include <algorithm>

#include "base/errors.h"
#include "models/activation.h"
#include "models/config_limits.h"
#include "models/config_reader.h"
#include "models/llama/llama_config.h"
#include "models/rope_json.h"

namespace brrr::models {

using io::Json;

const std::string& name_of(LlamaType type) {
  static const std::string names[] = {"llama", "mistral", "qwen2", "qwen3"};
  return names[static_cast<size_t>(type)];
}

void LlamaConfig::validate() const {
  const ConfigLimits limits(name_of(type));
  limits.size("vocab_size", vocab_size, int64_t{1} << 24);
  limits.size("max_position_embeddings", max_position_embeddings, int64_t{1} << 24);
  limits.size("hidden_size", hidden_size, int64_t{1} << 18);
  limits.size("num_hidden_layers", num_hidden_layers, 4096);
  limits.size("num_attention_heads", num_attention_heads, int64_t{1} << 18);
  limits.size("num_key_value_heads", num_key_value_heads, num_attention_heads);
  limits.size("head_dim", head_dim, int64_t{1} << 12);
  limits.size("intermediate_size", intermediate_size, int64_t{1} << 20);
  if (num_attention_heads % num_key_value_heads != 0)
    limits.fail("num_attention_heads",
                fmt::format("a multiple of num_key_value_heads {}", num_key_value_heads),
                num_attention_heads);
  if (head_dim % 2 != 0) limits.fail("head_dim", "even, for rotary embeddings", head_dim);
  if (num_attention_heads * head_dim > int64_t{1} << 20)
    limits.fail("num_attention_heads * head_dim", "at most 1048576",
                num_attention_heads * head_dim);
  limits.epsilon("rms_norm_eps", rms_norm_eps);
  limits.deviation("initializer_range", initializer_range);
  limits.probability("attention_dropout", attention_dropout);
  if (sliding_window < 0) limits.fail("sliding_window", "positive or null", sliding_window);
  if (!slides.empty() && static_cast<int64_t>(slides.size()) != num_hidden_layers)
    limits.fail("layer_types",
                fmt::format("a list of num_hidden_layers = {} entries", num_hidden_layers),
                slides.size());
  check_rope(rope, name_of(type));
}

namespace {

LlamaType type_of(const ConfigReader& keys) {
  const std::string name = keys.text("model_type", "llama");
  for (const LlamaType type :
       {LlamaType::llama, LlamaType::mistral, LlamaType::qwen2, LlamaType::qwen3})
    if (name_of(type) == name) return type;
  user_error("{}: model_type must be llama, mistral, qwen2 or qwen3; found {}", keys.what(),
             io::in_quotes(name));
}

/// The layers whose queries see a window only; empty: all of them.
std::vector<bool> read_layer_types(const ConfigReader& keys) {
  std::vector<bool> slides;
  if (!keys.has("layer_types")) return slides;
  const Json& list = *keys.find("layer_types");
  if (!list.is_array())
    user_error("{}: 'layer_types' must be a list; found {}", keys.what(), io::describe(list));
  for (const Json& item : list) {
    const bool sliding = item == "sliding_attention";
    if (!sliding && item != "full_attention")
      user_error("{}: layer_types may hold full_attention and sliding_attention; found {}",
                 keys.what(), io::describe(item));
    slides.push_back(sliding);
  }
  return slides;
}

/// 0: there is none. Absent is not null: the classes of transformers have a default.
int64_t read_window(const ConfigReader& keys) {
  if (!keys.find("sliding_window")) return 4096;
  const auto window = keys.optional_integer("sliding_window");
  if (window && *window < 1)
    user_error("{}: sliding_window must be positive or null; found {}", keys.what(), *window);
  return window.value_or(0);
}

void read_windows(LlamaConfig& c, const ConfigReader& keys) {
  if (c.type == LlamaType::llama) return;
  const bool qwen = c.type != LlamaType::mistral;
  if (qwen && !keys.flag("use_sliding_window", false)) return;
  c.sliding_window = read_window(keys);
  if (!qwen) return;
  c.slides = read_layer_types(keys);
  if (!c.slides.empty() || c.sliding_window == 0) return;
  const int64_t first = keys.integer("max_window_layers", 28);
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) c.slides.push_back(layer >= first);
}

void refuse_variants(const ConfigReader& keys) {
  read_activation(keys, "hidden_act", Activation::silu, {Activation::silu});
  if (const int64_t parts = keys.integer("pretraining_tp", 1); parts != 1)
    user_error("{}: pretraining_tp = {} is not supported; expected 1", keys.what(), parts);
  keys.refuse_quantization();
  // Layers without rotation or with experts have model types of their own; a file may lie.
  for (const char* key : {"no_rope_layers", "num_local_experts", "num_experts", "attention_sinks"})
    if (keys.has(key)) user_error("{}: {} is not supported", keys.what(), key);
}

Json written(const LlamaConfig& c, DType stored) {
  constexpr const char* kClasses[] = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
                                      "Qwen3ForCausalLM"};
  Json out = {{"architectures", {kClasses[static_cast<size_t>(c.type)]}},
              {"attention_dropout", c.attention_dropout},
              {"bos_token_id", ids_text({c.bos_token_id}, c.vocab_size)},
              {"dtype", dtype_text(stored)},
              {"eos_token_id", ids_text(c.eos_token_ids, c.vocab_size)},
              {"head_dim", c.head_dim},
              {"hidden_act", "silu"},
              {"hidden_size", c.hidden_size},
              {"initializer_range", c.initializer_range},
              {"intermediate_size", c.intermediate_size},
              {"max_position_embeddings", c.max_position_embeddings},
              {"model_type", name_of(c.type)},
              {"num_attention_heads", c.num_attention_heads},
              {"num_hidden_layers", c.num_hidden_layers},
              {"num_key_value_heads", c.num_key_value_heads},
              {"rms_norm_eps", c.rms_norm_eps},
              {"rope_scaling", written_rope(c.rope)},
              {"rope_theta", c.rope.theta},
              {"tie_word_embeddings", c.tie_word_embeddings},
              {"torch_dtype", dtype_text(stored)},
              {"use_cache", true},
              {"vocab_size", c.vocab_size}};
  if (c.type == LlamaType::llama || c.type == LlamaType::qwen3) out["attention_bias"] = c.qkv_bias;
  if (c.type == LlamaType::llama) out["mlp_bias"] = c.mlp_bias;
  if (c.type == LlamaType::mistral)
    out["sliding_window"] = c.sliding_window > 0 ? Json(c.sliding_window) : Json();
  if (c.type == LlamaType::qwen2 || c.type == LlamaType::qwen3) {
    out["use_sliding_window"] = c.sliding_window > 0;
    out["sliding_window"] = c.sliding_window > 0 ? Json(c.sliding_window) : Json();
    Json types = Json::array();
    int64_t first = c.num_hidden_layers;
    for (int64_t layer = c.num_hidden_layers; layer-- > 0;) {
      if (c.window_of(layer) > 0) first = layer;
      types.insert(types.begin(), c.window_of(layer) > 0 ? "sliding_attention" : "full_attention");
    }
    out["layer_types"] = types;
    out["max_window_layers"] = first;  // for versions that do not read layer_types
  }
  return out;
}

}  // namespace

LlamaConfig parse_llama_config(std::string_view text, const std::string& what) {
  const ConfigReader keys(text, what,
                          "the configuration needs vocab_size, hidden_size, intermediate_size, "
                          "num_hidden_layers and num_attention_heads");
  LlamaConfig c;
  c.type = type_of(keys);
  c.vocab_size = keys.required_integer("vocab_size");
  c.hidden_size = keys.required_integer("hidden_size");
  c.intermediate_size = keys.required_integer("intermediate_size");
  c.num_hidden_layers = keys.required_integer("num_hidden_layers");
  c.num_attention_heads = keys.required_integer("num_attention_heads");
  // What a file leaves out has the default of the class in transformers.
  const bool qwen = c.type == LlamaType::qwen2 || c.type == LlamaType::qwen3;
  const int64_t heads = std::max<int64_t>(1, c.num_attention_heads);
  c.num_key_value_heads = keys.integer(
      "num_key_value_heads", c.type == LlamaType::mistral && !keys.find("num_key_value_heads") ? 8
                             : qwen && !keys.find("num_key_value_heads")                       ? 32
                                                                         : heads);
  c.head_dim = keys.integer("head_dim", c.type == LlamaType::qwen3 && !keys.find("head_dim")
                                            ? 128
                                            : c.hidden_size / heads);
  c.max_position_embeddings =
      keys.integer("max_position_embeddings", c.type == LlamaType::llama     ? 2048
                                              : c.type == LlamaType::mistral ? 4096 * 32
                                                                             : 32768);
  c.rms_norm_eps = keys.number("rms_norm_eps", 1e-6);
  c.initializer_range = keys.number("initializer_range", 0.02);
  c.attention_dropout = keys.number("attention_dropout", 0);
  c.tie_word_embeddings = keys.flag("tie_word_embeddings", false);
  const bool reads_bias = c.type == LlamaType::llama || c.type == LlamaType::qwen3;
  c.qkv_bias = c.type == LlamaType::qwen2 || (reads_bias && keys.flag("attention_bias", false));
  c.output_bias = reads_bias && keys.flag("attention_bias", false);
  c.mlp_bias = c.type == LlamaType::llama && keys.flag("mlp_bias", false);
  c.qk_norm = c.type == LlamaType::qwen3;
  c.rope.theta = keys.number("rope_theta", 10000);
  c.rope.partial_rotary_factor = keys.number("partial_rotary_factor", 1);
  read_rope(c.rope, keys, c.max_position_embeddings);
  read_windows(c, keys);
  if (const auto bos = keys.optional_integer("bos_token_id")) c.bos_token_id = *bos;
  c.eos_token_ids = keys.integers("eos_token_id");
  try {
    c.validate();
  } catch (const UserError& e) {
    user_error("{}: {}", what, e.what());
  }
  if (const double part = c.rope.partial_rotary_factor; part != 1)
    user_error("{}: partial_rotary_factor = {} is not supported; expected 1", what, part);
  refuse_variants(keys);
  c.unknown_keys = keys.unknown_keys(written(c, DType::f32), {"rope_parameters", "sliding_window"});
  return c;
}

std::string llama_config_json(const LlamaConfig& config, DType stored) {
  return config_text(written(config, stored), config.unknown_keys);
}

}  // namespace brrr::models
