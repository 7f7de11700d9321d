// The fields of a ModernBERT: config.json both ways, options, checks, tensor names and presets.

#include "models/modernbert/modernbert_config.h"

#include "models/configured_model.h"
#include "models/rope_json.h"
#include "models/rotary_attention.h"
#include "models/task_json.h"

namespace brrr::models {
namespace {

using io::Json;

const Spellings& classifier_poolings() {
  static const Spellings all = {{"cls"}, {"mean"}};
  return all;
}

/// Version 5 of transformers has an object of rotary settings for each kind of layer, version 4 has
/// global_rope_theta and local_rope_theta.
void read_ropes(ModernBertConfig& c, const ConfigReader& keys) {
  if (!keys.has("rope_parameters")) return;
  const ConfigReader both(keys, "rope_parameters");
  for (const auto& [kind, rope] :
       {std::pair{layer_kinds::kFull, &c.global_rope}, {layer_kinds::kSliding, &c.local_rope}})
    if (both.has(kind))
      read_rope_object(*rope, ConfigReader(both, kind), c.max_position_embeddings);
}

/// Reads which layers have a window: version 5 lists them all, version 4 says every how many layers
/// one has none.
void read_sliding_layers(ModernBertConfig& c, const ConfigReader& keys) {
  c.slides = read_layer_types(keys);
  if (c.slides.empty()) return;
  // Drop the list if the pattern implies it.
  ModernBertConfig by_pattern = c;
  by_pattern.slides.clear();
  if (!keys.has("global_attn_every_n_layers"))
    for (int64_t i = 1; i < std::ssize(c.slides); ++i)
      if (!c.slides_in(i)) {
        by_pattern.global_attn_every_n_layers = i;
        break;
      }
  for (int64_t i = 0; i < std::ssize(c.slides); ++i)
    if (by_pattern.slides_in(i) != c.slides_in(i)) return;
  if (std::ssize(c.slides) == c.num_hidden_layers) c = by_pattern;
}

}  // namespace

const ConfigTable<ModernBertConfig>& ModernBertConfig::table() {
  static const ConfigTable<ModernBertConfig> table = [] {
    using C = ModernBertConfig;
    C described;  // modernbert-mini; 0: complete_modernbert() derives it
    described.num_hidden_layers = described.num_attention_heads = 4;
    described.hidden_size = 256;
    described.intermediate_size = 0;
    described.local_attention = 32;
    ConfigTable<C> t(described);
    t.size("vocab_size", &C::vocab_size, 1 << 24).required();
    t.size("max_position_embeddings", &C::max_position_embeddings, 1 << 24);
    t.layers("num_hidden_layers", &C::num_hidden_layers);
    t.heads("num_attention_heads", &C::num_attention_heads);
    t.width("hidden_size", &C::hidden_size);
    t.mlp_width("intermediate_size", &C::intermediate_size, "1.5 times n-embd");
    t.choice("hidden_activation", &C::hidden_activation, activation_choices())
        .option("hidden-act", "activation of the MLP: gelu (erf), gelu_new (tanh), relu or silu");
    t.epsilon("norm_eps", &C::norm_eps)
        .also({"layer_norm_eps"})
        .option("layer-norm-eps", "epsilon added to the variance in norms");
    t.flag("norm_bias", &C::norm_bias);
    t.flag("attention_bias", &C::attention_bias);
    t.flag("mlp_bias", &C::mlp_bias);
    t.flag("decoder_bias", &C::decoder_bias);
    t.flag("classifier_bias", &C::classifier_bias);
    t.choice("classifier_activation", &C::classifier_activation, activation_choices());
    t.choice("classifier_pooling", &C::classifier_pooling, classifier_poolings())
        .option("classifier-pooling",
                "what the head for classes reads: cls (the first token) or mean (of all tokens)");
    t.tied("tie_word_embeddings", &C::tie_word_embeddings);
    t.size("local_attention", &C::local_attention, 1 << 24)
        .option("local-attention",
                "keys that a query of a layer with a window sees, half of them on each side");
    t.size("global_attn_every_n_layers", &C::global_attn_every_n_layers, 1 << 12)
        .option("global-attn-every-n-layers", "the first of so many layers sees whole texts");
    t.custom("layer_types", read_sliding_layers, [](const C& c) {
      return written_layer_types(c.num_hidden_layers,
                                 [&](int64_t layer) { return c.slides_in(layer); });
    });
    const RealRange above_one{.low = 1, .low_open = true};
    t.real(
         "global_rope_theta", [](C& c) -> double& { return c.global_rope.theta; }, above_one,
         "above 1")
        .option("rope-theta", "base of the rotary frequencies of layers that see whole texts",
                {"rope-base", "rope-freq-base"});
    t.real(
         "local_rope_theta", [](C& c) -> double& { return c.local_rope.theta; }, above_one,
         "above 1")
        .option("local-rope-theta", "the same for layers with a window");
    t.custom("rope_parameters", read_ropes, [](const C& c) {
      const auto object = [](const RopeConfig& rope) {
        return Json{{"rope_theta", rope.theta}, {"rope_type", name_of(rope.kind)}};
      };
      return Json{{layer_kinds::kFull, object(c.global_rope)},
                  {layer_kinds::kSliding, object(c.local_rope)}};
    });
    t.deviation("initializer_range", &C::initializer_range);
    t.dropout("attention_dropout", &C::attention_dropout);
    t.dropout("embedding_dropout", &C::embedding_dropout);
    t.dropout("mlp_dropout", &C::mlp_dropout);
    t.dropout("classifier_dropout", &C::classifier_dropout);
    t.integer("pad_token_id", &C::pad_token_id, 0, 1 << 24);
    t.token("bos_token_id", &C::bos_token_id);
    t.token("eos_token_id", &C::eos_token_id);
    t.constant("model_type", {"modernbert"});
    t.insisted("rope_scaling", {nullptr});
    return t;
  }();
  return table;
}

void ModernBertConfig::validate() const {
  table().check(*this);
  const ConfigLimits limits = this->limits();
  limits.multiple("hidden_size", hidden_size, "num_attention_heads", num_attention_heads);
  if (hidden_size / num_attention_heads % 2 != 0)
    limits.fail("hidden_size / num_attention_heads", "even, for rotary embeddings",
                hidden_size / num_attention_heads);
  if (pad_token_id >= vocab_size)
    limits.fail("pad_token_id", fmt::format("a token below vocab_size {}", vocab_size),
                pad_token_id);
  if (!slides.empty() && std::ssize(slides) != num_hidden_layers)
    limits.fail("layer_types",
                fmt::format("a list of num_hidden_layers = {} entries", num_hidden_layers),
                slides.size());
  for (const RopeConfig& rope : {global_rope, local_rope}) {
    if (rope.kind != RopeConfig::Kind::plain)
      limits.fail("rope_type", "default", name_of(rope.kind));
    if (rope.partial_rotary_factor != 1)
      limits.fail("partial_rotary_factor", "1", rope.partial_rotary_factor);
    check_rope(rope, "modernbert");
  }
  if (task.head == Head::classes || task.head == Head::values || task.head == Head::token_classes)
    limits.size("the number of labels", std::ssize(task.labels), kMostLabels);
}

ModernBertConfig parse_modernbert_config(std::string_view text, const std::string& what) {
  const ConfigReader keys(text, what);
  ModernBertConfig d;
  d.task = read_encoder_task(keys);
  return config_from(keys, d, [](ModernBertConfig&) {},
                     {"num_labels", "id2label", "label2id", "problem_type"});
}

std::string ModernBertConfig::json(DType stored) const {
  Json labels = Json::object();
  write_labels(task, labels);
  return config_json_of(*this, stored, std::string("ModernBert") + class_ending(task.head),
                        std::move(labels));
}

namespace {

class ModernBertModel final : public ConfiguredEncoder<ModernBertConfig> {
 public:
  using ConfiguredEncoder::ConfiguredEncoder;

  bool has_token_types() const override { return false; }

 protected:
  std::unique_ptr<EncoderNet> build(Parameters& p, std::optional<Value> rng_key) const override {
    p.set_deviation(c_.initializer_range);
    return modernbert_net(p, c_, rng_key);
  }
  Pooling text_pooling() const override {
    return c_.classifier_pooling == ClassifierPooling::mean ? Pooling::mean : Pooling::cls;
  }
};

void complete_modernbert(ModernBertConfig& c, const Description& d) {
  check_heads_divide(c.hidden_size, c.num_attention_heads);
  if (c.hidden_size / c.num_attention_heads % 2 != 0)
    usage_error("the width of a head must be even, for rotary embeddings; got {}",
                c.hidden_size / c.num_attention_heads);
  if (c.intermediate_size == 0) c.intermediate_size = 3 * c.hidden_size / 2;
  c.max_position_embeddings = d.context;
  c.pad_token_id = d.pad_token.value_or(0);
  c.bos_token_id = c.eos_token_id = -1;
}

std::vector<Preset> modernbert_presets() {
  return {
      // The recipe of bert-mini; two layers of three have a window.
      {"modernbert-mini", "a ModernBERT, 6 layers of width 256, that learns to fill masks",
       preset_values("--tokenizer wordpiece:4000 --n-layer 6 --n-head 4 --n-embd 256 "
                     "--local-attention 32 --context 128 --dropout 0 --max-steps 1000 "
                     "--batch-size 32 --learning-rate 1e-3 --lr-scheduler-type linear "
                     "--warmup-steps 0.06 --weight-decay 0.01 --adam-beta2 0.98 --eval-steps 250 "
                     "--eval-batches 20")},
      // The sizes of the published base model (Warner et al. 2024, table 4).
      {"modernbert-base", "the shape of ModernBERT base, 150M parameters",
       preset_values("--tokenizer wordpiece:4000 --vocab-size 50368 --n-layer 22 --n-head 12 "
                     "--n-embd 768 --intermediate-size 1152 --local-attention 128 --context 1024 "
                     "--dropout 0 --max-steps 1000 --batch-size 4 --learning-rate 8e-4 "
                     "--warmup-steps 0.05 --weight-decay 1e-5 --adam-beta2 0.98 --eval-steps 250 "
                     "--eval-batches 20")},
  };
}

}  // namespace

FileNames ModernBertConfig::file_names() const {
  FileNames names;
  names.prefix = "model.";
  names.trunk = {"embeddings.", "layers.", "final_norm."};
  names.is_buffer = [](std::string_view name) {
    return name.find("rotary_emb.") != std::string_view::npos;
  };
  if (task.head == Head::masked_token && tie_word_embeddings)
    names.tied = {"decoder.weight", "model.embeddings.tok_embeddings.weight"};
  return names;
}

ModelPtr ModernBertConfig::model() const { return std::make_shared<ModernBertModel>(*this); }

const Architecture& ModernBertConfig::architecture() {
  static const Architecture architecture =
      architecture_of<ModernBertConfig>({.name = "modernbert",
                                         .title = "ModernBERT",
                                         .model_types = {"modernbert"},
                                         .class_names = {"ModernBert"},
                                         .presets = modernbert_presets(),
                                         .head = Head::masked_token},
                                        complete_modernbert, parse_modernbert_config);
  return architecture;
}

}  // namespace brrr::models
