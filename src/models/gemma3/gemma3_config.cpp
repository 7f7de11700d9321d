// The fields of a Gemma 3: config.json both ways, options, checks and presets.

#include "models/gemma3/gemma3_config.h"
#include "models/configured_model.h"
#include "models/rope_json.h"
#include "models/rotary_attention.h"

namespace brrr::models {
namespace {

/// Version 5 of transformers has an object for each kind of layer; version 4 has rope_theta,
/// rope_local_base_freq and the scaling of layers that see all.
void read_gemma_rope(Gemma3Config& c, const ConfigReader& keys) {
  const bool is_nested = keys.has("rope_parameters") &&
                         (keys.find("rope_parameters")->contains(layer_kinds::kFull) ||
                          keys.find("rope_parameters")->contains(layer_kinds::kSliding));
  if (!is_nested) return read_rope(c.rope, keys, c.max_position_embeddings);
  const ConfigReader both(keys, "rope_parameters");
  for (const auto& [kind, rope] :
       {std::pair{layer_kinds::kFull, &c.rope}, {layer_kinds::kSliding, &c.local_rope}})
    if (both.has(kind))
      read_rope_object(*rope, ConfigReader(both, kind), c.max_position_embeddings);
}

/// Reads which layers have a window: a list of all layers, or every how many layers one has none.
void read_layers(Gemma3Config& c, const ConfigReader& keys) {
  c.slides = read_layer_types(keys);
  if (!c.slides.empty()) return;
  const int64_t pattern =
      keys.integer("sliding_window_pattern", keys.integer("_sliding_window_pattern", 6));
  if (pattern < 1)
    user_error("{}: sliding_window_pattern must be at least 1; found {}", keys.what(), pattern);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) c.slides.push_back((i + 1) % pattern != 0);
}

}  // namespace

const ConfigTable<Gemma3Config>& Gemma3Config::table() {
  static const ConfigTable<Gemma3Config> table = [] {
    using C = Gemma3Config;
    C described;  // gemma3-char; 0: complete_gemma3() derives it
    described.num_hidden_layers = 6;
    described.num_attention_heads = 4;
    described.num_key_value_heads = 2;
    described.hidden_size = 128;
    described.head_dim = described.intermediate_size = described.query_pre_attn_scalar = 0;
    described.sliding_window = 32;
    ConfigTable<C> t(described);
    t.size("vocab_size", &C::vocab_size, 1 << 24).required();
    t.size("max_position_embeddings", &C::max_position_embeddings, 1 << 24);
    t.layers("num_hidden_layers", &C::num_hidden_layers);
    t.heads("num_attention_heads", &C::num_attention_heads);
    add_groups(t);
    t.width("hidden_size", &C::hidden_size);
    t.mlp_width("intermediate_size", &C::intermediate_size, "3 times n-embd");
    t.size("query_pre_attn_scalar", &C::query_pre_attn_scalar, 1 << 20)
        .option("query-pre-attn-scalar",
                "attention scores are divided by its square root (0: the head's width)", {}, 0);
    t.epsilon("rms_norm_eps", &C::rms_norm_eps)
        .option("rms-norm-eps", "epsilon added to the mean square in norms");
    add_theta(t, "rope_theta", &C::rope);
    t.real(
         "rope_local_base_freq", [](C& c) -> double& { return c.local_rope.theta; },
         {.low = 1, .low_open = true}, "above 1")
        .option("rope-local-base-freq", "the same for layers with a window");
    t.custom("rope_scaling", read_gemma_rope, [](const C& c) { return written_rope(c.rope); });
    t.size("sliding_window", &C::sliding_window, 1 << 24)
        .option("sliding-window",
                "keys that a query of five layers of six attends to, including itself");
    t.custom("layer_types", read_layers, [](const C& c) {
      return written_layer_types(c.num_hidden_layers,
                                 [&](int64_t layer) { return c.slides_in(layer); });
    });
    t.tied("tie_word_embeddings", &C::tie_word_embeddings);
    t.flag("attention_bias", &C::attention_bias);
    t.deviation("initializer_range", &C::initializer_range);
    t.dropout("attention_dropout", &C::attention_dropout);
    t.token("bos_token_id", &C::bos_token_id);
    t.tokens("eos_token_id", &C::eos_token_ids);
    t.constant("hidden_activation", {"gelu_pytorch_tanh", "gelu_new", "gelu_fast"});
    t.constant("model_type", {"gemma3_text"});
    t.constant("use_cache", {true, false});
    t.insisted("use_bidirectional_attention", {false});
    for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
      t.insisted(key, {nullptr});
    return t;
  }();
  return table;
}

void Gemma3Config::validate() const {
  table().check(*this);
  const ConfigLimits limits = this->limits();
  check_groups(limits, num_attention_heads, num_key_value_heads, head_dim);
  if (!slides.empty() && std::ssize(slides) != num_hidden_layers)
    limits.fail("layer_types",
                fmt::format("a list of num_hidden_layers = {} entries", num_hidden_layers),
                slides.size());
  if (local_rope.kind != RopeConfig::Kind::plain)
    limits.fail("the rope_type of sliding_attention", "default", name_of(local_rope.kind));
  for (const RopeConfig& r : {rope, local_rope}) {
    check_rope(r, "gemma3");
    if (r.partial_rotary_factor != 1)
      limits.fail("partial_rotary_factor", "1", r.partial_rotary_factor);
  }
}

Gemma3Config parse_gemma3_config(std::string_view text, const std::string& what) {
  return config_from(ConfigReader(text, what), Gemma3Config{}, [](Gemma3Config&) {},
                     {"rope_parameters", "sliding_window_pattern", "_sliding_window_pattern"});
}

std::string Gemma3Config::json(DType stored) const {
  return config_json_of(*this, stored, "Gemma3ForCausalLM");
}

namespace {

void complete_gemma3(Gemma3Config& c, const Description& d) {
  c.max_position_embeddings = d.context;
  complete_heads(c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim);
  if (c.intermediate_size == 0) c.intermediate_size = 3 * c.hidden_size;
  if (c.query_pre_attn_scalar == 0) c.query_pre_attn_scalar = c.head_dim;
}

std::vector<Preset> gemma3_presets() {
  return {
      // The size and the schedule of char-cpu.
      {"gemma3-char", "characters, 1.1M parameters, 2,000 steps: a small Gemma 3",
       preset_values("--tokenizer char --n-layer 6 --n-head 4 --num-key-value-heads 2 "
                     "--n-embd 128 --intermediate-size 384 --sliding-window 32 --context 64 "
                     "--dropout 0 --max-steps 2000 --batch-size 12 --learning-rate 1e-3 "
                     "--warmup-steps 100 --weight-decay 0.1 --adam-beta2 0.99 "
                     "--max-grad-norm 1.0 --eval-steps 250 --eval-batches 20 --logging-steps 1")},
      // The sizes of its model card, trained at a context that a machine without a GPU has time
      // for.
      {"gemma3-270m", "the shape of Gemma 3 270M",
       preset_values("--tokenizer gpt2 --vocab-size 262144 --n-layer 18 --n-head 4 "
                     "--num-key-value-heads 1 --n-embd 640 --head-dim 256 "
                     "--intermediate-size 2048 --sliding-window 512 --context 1024 --dropout 0 "
                     "--max-steps 1000 --batch-size 1 --learning-rate 4e-4 --warmup-steps 0.03 "
                     "--weight-decay 0.1 --adam-beta2 0.95 --eval-steps 100 --eval-batches 20")},
  };
}

}  // namespace

ModelSizes Gemma3Config::sizes() const { return rotary_sizes(*this); }

FileNames Gemma3Config::file_names() const { return rotary_file_names(tie_word_embeddings); }

ModelPtr Gemma3Config::model() const { return causal_model(*this); }

const Architecture& Gemma3Config::architecture() {
  static const Architecture architecture =
      architecture_of<Gemma3Config>({.name = "gemma3",
                                     .title = "Gemma 3",
                                     .model_types = {"gemma3_text"},
                                     .class_names = {"Gemma3ForCausalLM"},
                                     .presets = gemma3_presets()},
                                    complete_gemma3, parse_gemma3_config);
  return architecture;
}

}  // namespace brrr::models
