// The fields of a GPT-2: config.json both ways, options, checks and presets.

#include "models/gpt2/gpt2_config.h"
#include "models/configured_model.h"

namespace brrr::models {

const ConfigTable<Gpt2Config>& Gpt2Config::table() {
  static const ConfigTable<Gpt2Config> table = [] {
    using C = Gpt2Config;
    C described;  // char-cpu
    described.n_layer = described.n_head = 4;
    described.n_embd = 128;
    described.bias = false;
    ConfigTable<C> t(described);
    t.size("vocab_size", &C::vocab_size, 1 << 24).required();
    t.size("n_positions", &C::n_positions, 1 << 24).required();
    t.layers("n_layer", &C::n_layer);
    t.heads("n_head", &C::n_head);
    t.width("n_embd", &C::n_embd);
    t.size_or_null("n_inner", &C::n_inner, 1 << 20)
        .option("n-inner", "width of the MLP (0: 4 times the width of the model)", {}, 0);
    t.flag("bias", &C::bias)
        .written([](const C& c) { return !c.bias; })
        .option("bias", "biases in Linear and LayerNorm");
    t.flag("scale_attn_weights", &C::scale_attn_weights)
        .option("scale-attn-weights",
                "divide attention scores by the square root of the head's width");
    t.flag("scale_attn_by_inverse_layer_idx", &C::scale_attn_by_inverse_layer_idx)
        .option("scale-attn-by-inverse-layer-idx",
                "divide attention scores by the number of the layer, too");
    t.flag("reorder_and_upcast_attn", &C::reorder_and_upcast_attn)
        .option("reorder-and-upcast-attn",
                "written to config.json; scores are computed in f32 in any case");
    t.dropout("resid_pdrop", &C::resid_pdrop);
    t.dropout("embd_pdrop", &C::embd_pdrop);
    t.dropout("attn_pdrop", &C::attn_pdrop);
    t.epsilon("layer_norm_epsilon", &C::layer_norm_epsilon);
    t.deviation("initializer_range", &C::initializer_range);
    t.choice("activation_function", &C::activation, activation_choices());
    t.flag("tie_word_embeddings", &C::tie_word_embeddings);
    t.token("bos_token_id", &C::bos_token_id);
    t.token("eos_token_id", &C::eos_token_id);
    t.constant("use_cache", {true, false});
    t.constant("model_type", {"gpt2"});
    t.insisted("add_cross_attention", {false});
    return t;
  }();
  return table;
}

void Gpt2Config::validate() const {
  table().check(*this);
  limits().size("n_inner", mlp_width(), int64_t{1} << 20);
  if (n_embd % n_head != 0)
    user_error("[gpt2 config] n_embd must be divisible by n_head; got n_embd {} and n_head {}",
               n_embd, n_head);
}

Gpt2Config parse_gpt2_config(std::string_view text, const std::string& what) {
  const auto finish = [](Gpt2Config& c) {
    if (c.n_inner == 4 * c.n_embd) c.n_inner = 0;
  };
  return config_from(ConfigReader(text, what), Gpt2Config{}, finish, {"n_ctx"});
}

std::string Gpt2Config::json(DType stored) const {
  return config_json_of(*this, stored, "GPT2LMHeadModel", {{"n_ctx", n_positions}});
}

namespace {

void complete_gpt2(Gpt2Config& c, const Description& d) {
  c.n_positions = d.context;
  check_heads_divide(c.n_embd, c.n_head);
}

std::vector<Preset> gpt2_presets() {
  const std::string characters =
      "--tokenizer char --bias false --learning-rate 1e-3 --warmup-steps 100 --weight-decay 0.1 "
      "--adam-beta2 0.99 --max-grad-norm 1.0 --eval-steps 250 ";
  // Sizes of Radford et al. 2019, table 2, with the published weights' names. Learning rates are
  // those of GPT-3 (Brown et al. 2020, table 2.1) for its model nearest in size: 125M 6e-4, 350M
  // 3e-4, 760M 2.5e-4, 1.3B 2e-4. The rest follows nanoGPT's GPT-2 configuration; the number of
  // steps is for a machine without a GPU, and warm-up and decay follow it.
  const std::string published =
      "--tokenizer gpt2 --vocab-size 50257 --context 1024 --dropout 0 --bias true "
      "--max-steps 1000 --batch-size 4 --warmup-steps 0.03 --weight-decay 0.1 --adam-beta2 0.95 "
      "--eval-steps 100 --eval-batches 20 ";
  return {
      // nanoGPT's README, "I only have a macbook": the defaults of TrainOptions, repeated so that
      // the preset does not hang on them.
      {"char-cpu", "characters, 0.8M parameters, 2,000 steps: under a minute on 2 cores",
       preset_values(characters + "--n-layer 4 --n-head 4 --n-embd 128 --context 64 --dropout 0 "
                                  "--max-steps 2000 --batch-size 12 --eval-batches 20 "
                                  "--logging-steps 1")},
      // nanoGPT's config/train_shakespeare_char.py.
      {"char", "characters, 10.7M parameters, 5,000 steps",
       preset_values(characters + "--n-layer 6 --n-head 6 --n-embd 384 --context 256 "
                                  "--dropout 0.2 --max-steps 5000 --batch-size 64 "
                                  "--eval-batches 200 --logging-steps 10")},
      {"gpt2", "GPT-2, 124M parameters",
       preset_values(published + "--n-layer 12 --n-head 12 --n-embd 768 --learning-rate 6e-4")},
      {"gpt2-medium", "GPT-2, 350M parameters",
       preset_values(published + "--n-layer 24 --n-head 16 --n-embd 1024 --learning-rate 3e-4")},
      {"gpt2-large", "GPT-2, 774M parameters",
       preset_values(published + "--n-layer 36 --n-head 20 --n-embd 1280 --learning-rate 2.5e-4")},
      {"gpt2-xl", "GPT-2, 1.5B parameters",
       preset_values(published + "--n-layer 48 --n-head 25 --n-embd 1600 --learning-rate 2e-4")},
      // The defaults of transformers' Trainer and of its example run_clm.py, which takes blocks of
      // as many tokens as the model knows, but 1,024 at most; a warm-up as for fine-tuning BERT.
      {"fine-tune-text", "fine-tune a language model on your text: with --init-from",
       preset_values("--max-steps 0 --num-train-epochs 3 --context 1024 --batch-size 8 "
                     "--learning-rate 5e-5 --lr-scheduler-type linear --warmup-steps 0.1 "
                     "--weight-decay 0.01 --adam-beta2 0.999 --max-grad-norm 1.0 --eval-steps 50 "
                     "--eval-batches 20")},
  };
}

}  // namespace

ModelSizes Gpt2Config::sizes() const {
  return {.vocabulary = vocab_size,
          .context = n_positions,
          .layers = n_layer,
          .heads = n_head,
          .width = n_embd,
          .query_width = n_embd,
          .cache_width = 2 * n_layer * n_embd,
          .cache_heads = 2 * n_layer * n_head};
}

FileNames Gpt2Config::file_names() const {
  FileNames names;
  names.prefix = "transformer.";
  names.trunk = {"h.", "wte.", "wpe.", "ln_f."};
  names.is_buffer = [](std::string_view name) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  };
  if (tie_word_embeddings) names.tied = {"lm_head.weight", "transformer.wte.weight"};
  if (bias) return names;
  // Every bias: transformers knows no GPT-2 without them.
  Gpt2Config with_biases = *this;
  with_biases.bias = true;
  for (const ParameterInfo& p : with_biases.model()->parameters())
    if (p.name.ends_with(".bias")) names.zeros.emplace_back(p.name, p.shape);
  return names;
}

ModelPtr Gpt2Config::model() const { return causal_model(*this); }

const Architecture& Gpt2Config::architecture() {
  static const Architecture architecture =
      architecture_of<Gpt2Config>({.name = "gpt2",
                                   .title = "GPT-2",
                                   .model_types = {"gpt2"},
                                   .class_names = {"GPT2"},
                                   .presets = gpt2_presets()},
                                  complete_gpt2, parse_gpt2_config);
  return architecture;
}

}  // namespace brrr::models
