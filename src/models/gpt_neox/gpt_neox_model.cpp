#include "models/gpt_neox/gpt_neox_model.h"

#include "models/gpt_neox/gpt_neox.h"

namespace brrr::models {
namespace {

/// The options of `brrr train` that describe a GPT-NeoX; the defaults are those of neox-char.
struct GptNeoxSettings {
  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t n_embd = 128;
  int64_t intermediate_size = 0;  // 0: 4 n_embd
  std::string hidden_act = "gelu";
  double layer_norm_eps = 1e-5;
  double rope_theta = 10000;
  double rotary_pct = 0.25;
  bool use_parallel_residual = true;
  bool attention_bias = true;
  bool tie_word_embeddings = true;
};

const OptionTable<GptNeoxSettings>& gpt_neox_table() {
  static const OptionTable<GptNeoxSettings> table = [] {
    using S = GptNeoxSettings;
    OptionTable<S> t;
    t.group("model");
    t.integer("n-layer", &S::n_layer, 1, 4096, "N", "transformer blocks",
              {"num-hidden-layers", "num-layers"});
    t.integer("n-head", &S::n_head, 1, 1 << 18, "N", "attention heads per block",
              {"num-attention-heads", "num-heads"});
    t.integer("n-embd", &S::n_embd, 1, 1 << 18, "N", "width of the model", {"hidden-size"});
    t.integer("intermediate-size", &S::intermediate_size, 0, 1 << 20, "N",
              "width inside the MLP (0: 4 times n-embd)");
    t.choice("hidden-act", &S::hidden_act, activation_choices(), "NAME",
             "activation of the MLP: gelu (erf), gelu_new (tanh), relu or silu");
    t.real("layer-norm-eps", &S::layer_norm_eps,
           {.low = 0, .high = 1, .low_open = true, .high_open = true}, "X",
           "epsilon added to the variance in norms");
    t.real("rope-theta", &S::rope_theta, {.low = 1, .low_open = true}, "X",
           "base of the rotary frequencies", {"rope-base", "rope-freq-base"});
    t.real("rotary-pct", &S::rotary_pct, {.low = 0, .high = 1, .low_open = true}, "X",
           "fraction of a head's columns that rotary embeddings rotate", {"partial-rotary-factor"});
    t.flag("use-parallel-residual", &S::use_parallel_residual,
           "the MLP reads the input of attention, not its output");
    t.flag("attention-bias", &S::attention_bias, "biases in attention's products");
    t.flag("tie-word-embeddings", &S::tie_word_embeddings,
           "tie the output head to the token embedding");
    return t;
  }();
  return table;
}

constexpr const char* kNeoxPrefix = "gpt_neox.";

class GptNeoxModel final : public CausalModel {
 public:
  explicit GptNeoxModel(const GptNeoxConfig& config) : c_(config) { c_.validate(); }

  const Architecture& architecture() const override { return gpt_neox(); }
  ModelSizes sizes() const override {
    return {.vocabulary = c_.vocab_size,
            .context = longest_context(c_.rope, c_.max_position_embeddings),
            .layers = c_.num_hidden_layers,
            .heads = c_.num_attention_heads,
            .width = c_.hidden_size,
            .query_width = c_.hidden_size,
            .cache_width = 2 * c_.num_hidden_layers * c_.hidden_size};
  }

  std::vector<ParameterInfo> parameters() const override {
    const int64_t V = c_.vocab_size, C = c_.hidden_size, M = c_.intermediate_size;
    const Fill normal{Fill::Kind::normal, c_.initializer_range};
    const Fill ones{Fill::Kind::ones}, zeros{Fill::Kind::zeros};
    std::vector<ParameterInfo> list;
    const auto add = [&](const std::string& name, Shape shape, Fill fill, bool is_table = false) {
      list.push_back({kNeoxPrefix + name, std::move(shape), fill, is_table});
    };
    const auto add_norm = [&](const std::string& name) {
      add(name + ".weight", {C}, ones);
      add(name + ".bias", {C}, zeros);
    };
    const auto add_linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
      add(name + ".weight", {out, in}, normal);
      if (bias) add(name + ".bias", {out}, zeros);
    };
    add("embed_in.weight", {V, C}, normal, !c_.tie_word_embeddings);
    for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
      const std::string h = fmt::format("layers.{}.", layer);
      add_norm(h + "input_layernorm");
      add_norm(h + "post_attention_layernorm");
      add_linear(h + "attention.query_key_value", 3 * C, C, c_.attention_bias);
      add_linear(h + "attention.dense", C, C, c_.attention_bias);
      add_linear(h + "mlp.dense_h_to_4h", M, C, true);
      add_linear(h + "mlp.dense_4h_to_h", C, M, true);
    }
    add_norm("final_layer_norm");
    if (!c_.tie_word_embeddings) list.push_back({"lm_head.weight", {V, C}, normal});
    return list;
  }

  FileNames file_names() const override {
    FileNames names;
    names.prefix = kNeoxPrefix;
    names.trunk = {"layers.", "embed_in.", "final_layer_norm."};
    names.is_buffer = [](std::string_view name) {
      return name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias") ||
             name.ends_with("rotary_emb.inv_freq");
    };
    // Files from before transformers 5 call the head embed_out.
    names.renamed = {{"embed_out.weight", "lm_head.weight"}};
    if (c_.tie_word_embeddings) names.tied = {"lm_head.weight", "gpt_neox.embed_in.weight"};
    return names;
  }

  TextEnds text_ends() const override {
    return text_ends_within(c_.vocab_size, c_.bos_token_id, c_.eos_token_ids);
  }

  KeyValues settings() const override {
    GptNeoxSettings s;
    s.n_layer = c_.num_hidden_layers;
    s.n_head = c_.num_attention_heads;
    s.n_embd = c_.hidden_size;
    s.intermediate_size = c_.intermediate_size;
    s.hidden_act = name_of(c_.hidden_act);
    s.layer_norm_eps = c_.layer_norm_eps;
    s.rope_theta = c_.rope.theta;
    s.rotary_pct = c_.rope.partial_rotary_factor;
    s.use_parallel_residual = c_.use_parallel_residual;
    s.attention_bias = c_.attention_bias;
    s.tie_word_embeddings = c_.tie_word_embeddings;
    return settings_to(gpt_neox_table(), s);
  }
  std::string config_json(DType stored) const override { return gpt_neox_config_json(c_, stored); }

  ModelPtr with_dropout(double probability) const override {
    GptNeoxConfig c = c_;
    c.attention_dropout = c.hidden_dropout = probability;
    return gpt_neox_model(c);
  }
  double dropout() const override { return c_.hidden_dropout; }
  ModelPtr with_vocabulary(int64_t size) const override {
    GptNeoxConfig c = c_;
    c.vocab_size = size;
    return gpt_neox_model(c);
  }
  ModelPtr with_untied_head() const override {
    GptNeoxConfig c = c_;
    c.tie_word_embeddings = false;
    return gpt_neox_model(c);
  }

 protected:
  std::unique_ptr<CausalNet> build(Graph& g, std::optional<Value> rng_key) const override {
    return gpt_neox_net(g, c_, rng_key);
  }
  bool has_dropout() const override { return c_.attention_dropout > 0 || c_.hidden_dropout > 0; }

 private:
  GptNeoxConfig c_;
};

ModelPtr describe_gpt_neox(const Description& d) {
  const GptNeoxSettings s = settings_from(gpt_neox_table(), d.settings);
  if (s.n_embd % s.n_head != 0)
    usage_error("n-embd must be divisible by n-head; got n-embd {} and n-head {}", s.n_embd,
                s.n_head);
  GptNeoxConfig c;
  c.vocab_size = d.vocabulary;
  c.max_position_embeddings = d.context;
  c.hidden_size = s.n_embd;
  c.num_hidden_layers = s.n_layer;
  c.num_attention_heads = s.n_head;
  c.intermediate_size = s.intermediate_size > 0 ? s.intermediate_size : 4 * s.n_embd;
  c.layer_norm_eps = s.layer_norm_eps;
  c.hidden_act = activation_named(s.hidden_act);
  c.rope.theta = s.rope_theta;
  c.rope.partial_rotary_factor = s.rotary_pct;
  if (const int64_t columns = c.rotated_width(); columns < 2 || columns % 2 != 0)
    usage_error(
        "rotary-pct must leave an even number of columns of a head, at least 2; got {} of {}",
        columns, c.head_width());
  c.use_parallel_residual = s.use_parallel_residual;
  c.attention_bias = s.attention_bias;
  c.tie_word_embeddings = s.tie_word_embeddings;
  c.attention_dropout = c.hidden_dropout = d.dropout;
  return gpt_neox_model(c);
}

}  // namespace

std::vector<Preset> gpt_neox_presets();

const Architecture& gpt_neox() {
  static const Architecture architecture = [] {
    Architecture a;
    a.name = "gpt_neox";
    a.title = "GPT-NeoX";
    a.model_types = {"gpt_neox"};
    a.class_names = {"GPTNeoXFor"};
    a.options = options_of(gpt_neox_table());
    a.presets = gpt_neox_presets();
    a.describe = describe_gpt_neox;
    a.parse = [](std::string_view text, const std::string& what) {
      return gpt_neox_model(parse_gpt_neox_config(text, what));
    };
    return a;
  }();
  return architecture;
}

ModelPtr gpt_neox_model(const GptNeoxConfig& config) {
  return std::make_shared<GptNeoxModel>(config);
}

}  // namespace brrr::models
