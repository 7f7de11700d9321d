// The fields of a GPT-NeoX: config.json both ways, options, checks and presets.

#include "models/gpt_neox/gpt_neox_config.h"
#include "models/configured_model.h"
#include "models/rope_json.h"

namespace brrr::models {
namespace {

constexpr const char* kNeoxPrefix = "gpt_neox.";

}  // namespace

const ConfigTable<GptNeoxConfig>& GptNeoxConfig::table() {
  static const ConfigTable<GptNeoxConfig> table = [] {
    using C = GptNeoxConfig;
    C described;  // neox-char
    described.num_hidden_layers = described.num_attention_heads = 4;
    described.hidden_size = 128;
    described.intermediate_size = 0;  // complete_gpt_neox() derives it
    described.tie_word_embeddings = true;
    ConfigTable<C> t(described);
    t.size("vocab_size", &C::vocab_size, 1 << 24).required();
    t.size("max_position_embeddings", &C::max_position_embeddings, 1 << 24);
    t.layers("num_hidden_layers", &C::num_hidden_layers);
    t.heads("num_attention_heads", &C::num_attention_heads);
    t.width("hidden_size", &C::hidden_size);
    t.mlp_width("intermediate_size", &C::intermediate_size, "4 times n-embd");
    t.choice("hidden_act", &C::hidden_act, activation_choices())
        .option("hidden-act", "activation of the MLP: gelu (erf), gelu_new (tanh), relu or silu");
    t.epsilon("layer_norm_eps", &C::layer_norm_eps)
        .option("layer-norm-eps", "epsilon added to the variance in norms");
    // The architecture's own names, then those that other architectures use; an object with rotary
    // settings goes before both.
    add_theta(t, "rotary_emb_base", &C::rope).also({"rope_theta"});
    t.real(
         "rotary_pct", [](C& c) -> double& { return c.rope.partial_rotary_factor; },
         {.low = 0, .high = 1, .low_open = true}, "above 0 and at most 1")
        .also({"partial_rotary_factor"})
        .unchecked()  // by check_rope()
        .option("rotary-pct", "fraction of a head's columns that rotary embeddings rotate",
                {"partial-rotary-factor"});
    t.custom(
        "rope_scaling",
        [](C& c, const ConfigReader& keys) { read_rope(c.rope, keys, c.max_position_embeddings); },
        [](const C& c) { return written_rope(c.rope); });
    t.flag("use_parallel_residual", &C::use_parallel_residual)
        .option("use-parallel-residual", "the MLP reads the input of attention, not its output");
    t.flag("attention_bias", &C::attention_bias)
        .option("attention-bias", "biases in attention's products");
    t.tied("tie_word_embeddings", &C::tie_word_embeddings);
    t.deviation("initializer_range", &C::initializer_range);
    t.dropout("hidden_dropout", &C::hidden_dropout);
    t.dropout("attention_dropout", &C::attention_dropout);
    t.token("bos_token_id", &C::bos_token_id);
    t.tokens("eos_token_id", &C::eos_token_ids);
    t.constant("use_cache", {true, false});
    t.constant("model_type", {"gpt_neox"});
    return t;
  }();
  return table;
}

void GptNeoxConfig::validate() const {
  table().check(*this);
  const ConfigLimits limits = this->limits();
  limits.multiple("hidden_size", hidden_size, "num_attention_heads", num_attention_heads);
  check_rope(rope, "gpt_neox");
  if (const int64_t columns = rotated_width(); columns < 2 || columns % 2 != 0)
    limits.fail("the number of rotary columns of a head (partial_rotary_factor, or rotary_pct)",
                "even and at least 2", fmt::format("{} of {}", columns, head_width()));
}

GptNeoxConfig parse_gpt_neox_config(std::string_view text, const std::string& what) {
  const ConfigReader keys(text, what);
  GptNeoxConfig defaults;  // the class of transformers has other ends of a text than none
  defaults.bos_token_id = 0;
  defaults.eos_token_ids = {2};
  const GptNeoxConfig c =
      config_from(keys, defaults, [](GptNeoxConfig&) {}, {"head_dim", "rope_parameters"});
  if (const int64_t width = keys.integer("head_dim", c.head_width()); width != c.head_width())
    user_error(
        "{}: head_dim = {} is not supported; expected hidden_size / num_attention_heads = {}", what,
        width, c.head_width());
  return c;
}

std::string GptNeoxConfig::json(DType stored) const {
  return config_json_of(*this, stored, "GPTNeoXForCausalLM");
}

namespace {

void complete_gpt_neox(GptNeoxConfig& c, const Description& d) {
  c.max_position_embeddings = d.context;
  check_heads_divide(c.hidden_size, c.num_attention_heads);
  if (c.intermediate_size == 0) c.intermediate_size = 4 * c.hidden_size;
  if (const int64_t columns = c.rotated_width(); columns < 2 || columns % 2 != 0)
    usage_error(
        "rotary-pct must leave an even number of columns of a head, at least 2; got {} of {}",
        columns, c.head_width());
}

std::vector<Preset> gpt_neox_presets() {
  // Sizes and learning rates of Pythia (Biderman et al. 2023, table 1); the vocabulary is padded as
  // Pythia pads it. The number of steps is for a machine without a GPU.
  const std::string pythia =
      "--tokenizer gpt2 --vocab-size 50304 --tie-word-embeddings false --context 1024 --dropout 0 "
      "--max-steps 1000 --batch-size 4 --warmup-steps 0.01 --weight-decay 0.01 --adam-beta2 0.95 "
      "--eval-steps 100 --eval-batches 20 ";
  return {
      // The size and the schedule of char-cpu.
      {"neox-char", "characters, 0.8M parameters, 2,000 steps: a GPT-NeoX of char-cpu's size",
       preset_values("--tokenizer char --n-layer 4 --n-head 4 --n-embd 128 "
                     "--tie-word-embeddings true --context 64 --dropout 0 --max-steps 2000 "
                     "--batch-size 12 --learning-rate 1e-3 --warmup-steps 100 --weight-decay 0.1 "
                     "--adam-beta2 0.99 --max-grad-norm 1.0 --eval-steps 250 --eval-batches 20 "
                     "--logging-steps 1")},
      {"pythia-70m", "the shape of Pythia 70M",
       preset_values(pythia + "--n-layer 6 --n-head 8 --n-embd 512 --learning-rate 1e-3")},
      {"pythia-160m", "the shape of Pythia 160M",
       preset_values(pythia + "--n-layer 12 --n-head 12 --n-embd 768 --learning-rate 6e-4")},
  };
}

}  // namespace

ModelSizes GptNeoxConfig::sizes() const {
  return {.vocabulary = vocab_size,
          .context = longest_context(rope, max_position_embeddings),
          .layers = num_hidden_layers,
          .heads = num_attention_heads,
          .width = hidden_size,
          .query_width = hidden_size,
          .cache_width = 2 * num_hidden_layers * hidden_size,
          .cache_heads = 2 * num_hidden_layers * num_attention_heads};
}

FileNames GptNeoxConfig::file_names() const {
  FileNames names;
  names.prefix = kNeoxPrefix;
  names.trunk = {"layers.", "embed_in.", "final_layer_norm."};
  names.is_buffer = [](std::string_view name) {
    return name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias") ||
           name.ends_with("rotary_emb.inv_freq");
  };
  // Files from before transformers 5 call the head embed_out.
  names.renamed = {{"embed_out.weight", "lm_head.weight"}};
  if (tie_word_embeddings) names.tied = {"lm_head.weight", "gpt_neox.embed_in.weight"};
  return names;
}

ModelPtr GptNeoxConfig::model() const { return causal_model(*this); }

const Architecture& GptNeoxConfig::architecture() {
  static const Architecture architecture =
      architecture_of<GptNeoxConfig>({.name = "gpt_neox",
                                      .title = "GPT-NeoX",
                                      .model_types = {"gpt_neox"},
                                      .class_names = {"GPTNeoXFor"},
                                      .presets = gpt_neox_presets()},
                                     complete_gpt_neox, parse_gpt_neox_config);
  return architecture;
}

}  // namespace brrr::models
