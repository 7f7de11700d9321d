// The fields of the family: config.json both ways, options and checks.

#include <algorithm>

#include "models/configured_model.h"
#include "models/llama/llama_config.h"
#include "models/rope_json.h"
#include "models/rotary_attention.h"

namespace brrr::models {
namespace {

using io::Json;

const Spellings& llama_types() {
  static const Spellings types = {{"llama"}, {"mistral"}, {"qwen2"}, {"qwen3"}};
  return types;
}
const std::string& llama_type_name(LlamaType type) {
  return llama_types()[static_cast<size_t>(type)][0];
}

bool is_llama(const LlamaConfig& c) { return c.type == LlamaType::llama; }
bool is_qwen(const LlamaConfig& c) {
  return c.type == LlamaType::qwen2 || c.type == LlamaType::qwen3;
}

/// The windows of Qwen's layers: where they are used, in the layers that a list names, or in those
/// from max_window_layers on.
void read_windows(LlamaConfig& c, const ConfigReader& keys) {
  if (!keys.flag("use_sliding_window", false)) c.sliding_window = 0;
  if (c.sliding_window == 0) return;
  c.slides = read_layer_types(keys);
  if (!c.slides.empty()) return;
  const int64_t first = keys.integer("max_window_layers", 28);
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) c.slides.push_back(layer >= first);
}

/// Versions of transformers that do not read layer_types read the first layer with a window.
int64_t first_window(const LlamaConfig& c) {
  int64_t layer = 0;
  while (layer < c.num_hidden_layers && c.window_of(layer) == 0) ++layer;
  return layer;
}
}  // namespace

const ConfigTable<LlamaConfig>& LlamaConfig::table() {
  static const ConfigTable<LlamaConfig> table = [] {
    using C = LlamaConfig;
    C described;  // llama-char; 0: complete_llama() derives it
    described.num_hidden_layers = described.num_attention_heads = 4;
    described.hidden_size = 128;
    described.num_key_value_heads = described.head_dim = described.intermediate_size = 0;
    described.tie_word_embeddings = true;
    ConfigTable<C> t(described);
    t.choice("model_type", &C::type, llama_types())
        .option("model-type",
                "llama; mistral (windows), qwen2 (biases of q, k and v), qwen3 (norms of q and k)");
    t.size("vocab_size", &C::vocab_size, 1 << 24).required();
    t.size("max_position_embeddings", &C::max_position_embeddings, 1 << 24);
    t.layers("num_hidden_layers", &C::num_hidden_layers);
    t.heads("num_attention_heads", &C::num_attention_heads);
    add_groups(t);
    t.width("hidden_size", &C::hidden_size);
    t.mlp_width("intermediate_size", &C::intermediate_size, "8/3 of n-embd, in multiples of 64");
    t.epsilon("rms_norm_eps", &C::rms_norm_eps)
        .option("rms-norm-eps", "epsilon added to the mean square in norms");
    add_theta(t, "rope_theta", &C::rope);
    t.custom(
        "rope_scaling",
        [](C& c, const ConfigReader& keys) {
          c.rope.partial_rotary_factor = keys.number("partial_rotary_factor", 1);
          read_rope(c.rope, keys, c.max_position_embeddings);
        },
        [](const C& c) { return written_rope(c.rope); });
    t.size_or_null("sliding_window", &C::sliding_window, 1 << 24)
        .when([](const C& c) { return !is_llama(c); })
        .option("sliding-window",
                "keys that a query attends to, including itself (0: all before it)", {}, 0);
    t.custom("use_sliding_window", read_windows, [](const C& c) {
       return Json(c.sliding_window > 0);
     }).when(is_qwen);
    t.custom("layer_types", {}, [](const C& c) {
       return written_layer_types(c.num_hidden_layers,
                                  [&](int64_t layer) { return c.window_of(layer) > 0; });
     }).when(is_qwen);
    t.custom("max_window_layers", {}, [](const C& c) {
       return Json(first_window(c));
     }).when(is_qwen);
    t.tied("tie_word_embeddings", &C::tie_word_embeddings);
    t.flag("attention_bias", &C::qkv_bias).when([](const C& c) {
      return is_llama(c) || c.type == LlamaType::qwen3;
    });
    t.flag("mlp_bias", &C::mlp_bias).when(is_llama);
    t.deviation("initializer_range", &C::initializer_range);
    t.dropout("attention_dropout", &C::attention_dropout);
    t.token("bos_token_id", &C::bos_token_id);
    t.tokens("eos_token_id", &C::eos_token_ids);
    t.constant("hidden_act", {"silu", "swish"});
    t.constant("use_cache", {true, false});
    t.insisted("pretraining_tp", {1});
    // Layers without rotation or with experts have model types of their own; a file may lie.
    for (const char* key :
         {"no_rope_layers", "num_local_experts", "num_experts", "attention_sinks"})
      t.insisted(key, {nullptr});
    return t;
  }();
  return table;
}

ConfigLimits LlamaConfig::limits() const { return ConfigLimits(llama_type_name(type)); }

void LlamaConfig::validate() const {
  table().check(*this);
  const ConfigLimits limits = this->limits();
  check_groups(limits, num_attention_heads, num_key_value_heads, head_dim);
  if (!slides.empty() && static_cast<int64_t>(slides.size()) != num_hidden_layers)
    limits.fail("layer_types",
                fmt::format("a list of num_hidden_layers = {} entries", num_hidden_layers),
                slides.size());
  check_rope(rope, llama_type_name(type));
  if (rope.partial_rotary_factor != 1)
    limits.fail("partial_rotary_factor", "1", rope.partial_rotary_factor);
}

LlamaConfig parse_llama_config(std::string_view text, const std::string& what) {
  const ConfigReader keys(text, what);
  // What a file leaves out has the default of the class in transformers; absent is not null.
  LlamaConfig d;
  if (keys.has("model_type"))
    d.type = static_cast<LlamaType>(read_choice(keys, "model_type", llama_types()));
  const bool is_mistral = d.type == LlamaType::mistral;
  const int64_t heads = std::max<int64_t>(1, keys.integer("num_attention_heads", 1));
  d.num_key_value_heads = heads;
  if (!keys.find("num_key_value_heads") && !is_llama(d))
    d.num_key_value_heads = is_mistral ? 8 : 32;
  d.head_dim = keys.integer("hidden_size", 0) / heads;
  if (!keys.find("head_dim") && d.type == LlamaType::qwen3) d.head_dim = 128;
  if (!is_llama(d)) d.max_position_embeddings = is_mistral ? 4096 * 32 : 32768;
  if (!is_llama(d) && !keys.find("sliding_window")) d.sliding_window = 4096;
  d.qk_norm = d.type == LlamaType::qwen3;
  return config_from(keys, d,
                     [](LlamaConfig& c) {
                       c.output_bias = c.qkv_bias;
                       if (c.type == LlamaType::qwen2) c.qkv_bias = true;
                     },
                     {"rope_parameters", "sliding_window"});
}

std::string LlamaConfig::json(DType stored) const {
  constexpr const char* kClasses[] = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
                                      "Qwen3ForCausalLM"};
  return config_json_of(*this, stored, kClasses[static_cast<size_t>(type)]);
}

namespace {

void complete_llama(LlamaConfig& c, const Description& d) {
  c.max_position_embeddings = d.context;
  complete_heads(c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim);
  if (c.intermediate_size == 0) c.intermediate_size = (c.hidden_size * 8 / 3 + 63) / 64 * 64;
  if (c.sliding_window > 0 && is_llama(c))
    usage_error("--sliding-window needs --model-type mistral, qwen2 or qwen3; got llama");
  c.qkv_bias = c.type == LlamaType::qwen2;
  c.qk_norm = c.type == LlamaType::qwen3;
}

std::vector<Preset> llama_presets() {
  const std::string schedule =
      " --dropout 0 --max-steps 1000 --warmup-steps 0.03 --weight-decay 0.1 --adam-beta2 0.95 "
      "--eval-steps 100 --eval-batches 20 --tokenizer gpt2 --context 1024 "
      "--tie-word-embeddings true --rms-norm-eps 1e-5 ";
  return {
      // The size and the schedule of char-cpu: two heads of keys for four of queries leave room for
      // the third matrix of SwiGLU.
      {"llama-char", "characters, 0.8M parameters, 2,000 steps: a Llama of char-cpu's size",
       preset_values("--tokenizer char --n-layer 4 --n-head 4 --num-key-value-heads 2 "
                     "--n-embd 128 --intermediate-size 384 --tie-word-embeddings true "
                     "--context 64 --dropout 0 --max-steps 2000 --batch-size 12 "
                     "--learning-rate 1e-3 --warmup-steps 100 --weight-decay 0.1 "
                     "--adam-beta2 0.99 --max-grad-norm 1.0 --eval-steps 250 --eval-batches 20 "
                     "--logging-steps 1")},
      // The sizes of SmolLM2-135M (Allal et al. 2025, table 4) and of Llama 3.2 1B (its model
      // card), trained at a context that a machine without a GPU has time for.
      {"smollm-135m", "the shape of SmolLM 135M",
       preset_values(schedule + "--vocab-size 49152 --n-layer 30 --n-head 9 "
                                "--num-key-value-heads 3 --n-embd 576 --intermediate-size 1536 "
                                "--rope-theta 100000 --batch-size 4 --learning-rate 6e-4")},
      {"llama-1b", "the shape of Llama 3.2 1B",
       preset_values(schedule + "--vocab-size 128256 --n-layer 16 --n-head 32 "
                                "--num-key-value-heads 8 --n-embd 2048 --intermediate-size 8192 "
                                "--rope-theta 500000 --batch-size 1 --learning-rate 3e-4")},
  };
}

}  // namespace

ModelSizes LlamaConfig::sizes() const { return rotary_sizes(*this); }

FileNames LlamaConfig::file_names() const { return rotary_file_names(tie_word_embeddings); }

ModelPtr LlamaConfig::model() const { return causal_model(*this); }

const Architecture& LlamaConfig::architecture() {
  static const Architecture architecture =
      architecture_of<LlamaConfig>({.name = "llama",
                                    .title = "Llama",
                                    .model_types = {"llama", "mistral", "qwen2", "qwen3"},
                                    .class_names = {"Llama", "Mistral", "Qwen2For", "Qwen3For"},
                                    .presets = llama_presets()},
                                   complete_llama, parse_llama_config);
  return architecture;
}

}  // namespace brrr::models
