#include "models/gpt2/gpt2_model.h"

#include <cmath>

#include "models/gpt2/gpt2.h"

namespace brrr::models {
namespace {

/// The options of `brrr train` that describe a GPT-2; the defaults are those of char-cpu.
struct Gpt2Settings {
  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t n_embd = 128;
  int64_t n_inner = 0;
  bool bias = false;
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;
  bool reorder_and_upcast_attn = false;
};

const OptionTable<Gpt2Settings>& settings_table() {
  static const OptionTable<Gpt2Settings> table = [] {
    OptionTable<Gpt2Settings> t;
    t.group("model");
    t.integer("n-layer", &Gpt2Settings::n_layer, 1, 4096, "N", "transformer blocks",
              {"num-hidden-layers", "num-layers"});
    t.integer("n-head", &Gpt2Settings::n_head, 1, 1 << 18, "N", "attention heads per block",
              {"num-attention-heads", "num-heads"});
    t.integer("n-embd", &Gpt2Settings::n_embd, 1, 1 << 18, "N", "width of the model",
              {"hidden-size"});
    t.integer("n-inner", &Gpt2Settings::n_inner, 0, 1 << 20, "N",
              "width of the MLP (0: 4 times the width of the model)");
    t.flag("bias", &Gpt2Settings::bias, "biases in Linear and LayerNorm");
    t.flag("scale-attn-weights", &Gpt2Settings::scale_attn_weights,
           "divide attention scores by the square root of the head's width");
    t.flag("scale-attn-by-inverse-layer-idx", &Gpt2Settings::scale_attn_by_inverse_layer_idx,
           "divide attention scores by the number of the layer, too");
    t.flag("reorder-and-upcast-attn", &Gpt2Settings::reorder_and_upcast_attn,
           "written to config.json; scores are computed in f32 in any case");
    return t;
  }();
  return table;
}

constexpr const char* kPrefix = "transformer.";

class Gpt2Model final : public CausalModel {
 public:
  explicit Gpt2Model(const Gpt2Config& config) : c_(config) { c_.validate(); }

  const Architecture& architecture() const override { return gpt2(); }
  ModelSizes sizes() const override {
    return {.vocabulary = c_.vocab_size,
            .context = c_.n_positions,
            .layers = c_.n_layer,
            .heads = c_.n_head,
            .width = c_.n_embd,
            .query_width = c_.n_embd,
            .cache_width = 2 * c_.n_layer * c_.n_embd};
  }

  std::vector<ParameterInfo> parameters() const override {
    const int64_t V = c_.vocab_size, T = c_.n_positions, C = c_.n_embd, M = c_.mlp_width();
    const Fill normal{Fill::Kind::normal, c_.initializer_range};
    // What is added to the residual stream is smaller, the more layers add to it (Radford et al.).
    const Fill into_stream{Fill::Kind::normal,
                           c_.initializer_range / std::sqrt(2.0 * static_cast<double>(c_.n_layer))};
    const Fill ones{Fill::Kind::ones}, zeros{Fill::Kind::zeros};
    std::vector<ParameterInfo> list;
    const auto add = [&](const std::string& name, Shape shape, Fill fill, bool is_table = false) {
      list.push_back({kPrefix + name, std::move(shape), fill, is_table});
    };
    const auto add_pair = [&](const std::string& name, Shape weight, Fill fill) {
      const int64_t width = weight.size(-1);
      add(name + ".weight", std::move(weight), fill);
      if (c_.bias) add(name + ".bias", {width}, zeros);
    };
    add("wte.weight", {V, C}, normal, !c_.tie_word_embeddings);
    add("wpe.weight", {T, C}, normal, true);
    for (int64_t layer = 0; layer < c_.n_layer; ++layer) {
      const std::string h = fmt::format("h.{}.", layer);
      add_pair(h + "ln_1", {C}, ones);
      add_pair(h + "attn.c_attn", {C, 3 * C}, normal);
      add_pair(h + "attn.c_proj", {C, C}, into_stream);
      add_pair(h + "ln_2", {C}, ones);
      add_pair(h + "mlp.c_fc", {C, M}, normal);
      add_pair(h + "mlp.c_proj", {M, C}, into_stream);
    }
    add_pair("ln_f", {C}, ones);
    if (!c_.tie_word_embeddings) list.push_back({"lm_head.weight", {V, C}, normal});
    return list;
  }

  FileNames file_names() const override {
    FileNames names;
    names.prefix = kPrefix;
    names.trunk = {"h.", "wte.", "wpe.", "ln_f."};
    names.is_buffer = [](std::string_view name) {
      return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    };
    if (c_.tie_word_embeddings) names.tied = {"lm_head.weight", "transformer.wte.weight"};
    if (!c_.bias) names.zeros = biases();
    return names;
  }

  /// Every bias of GPT-2; transformers knows no model without them.
  std::vector<std::pair<std::string, Shape>> biases() const {
    Gpt2Config with_biases = c_;
    with_biases.bias = true;
    std::vector<std::pair<std::string, Shape>> all;
    for (const ParameterInfo& p : Gpt2Model(with_biases).parameters())
      if (p.name.ends_with(".bias")) all.emplace_back(p.name, p.shape);
    return all;
  }

  TextEnds text_ends() const override {
    return text_ends_within(c_.vocab_size, c_.bos_token_id, {c_.eos_token_id});
  }

  KeyValues settings() const override {
    return settings_to(settings_table(),
                       {.n_layer = c_.n_layer,
                        .n_head = c_.n_head,
                        .n_embd = c_.n_embd,
                        .n_inner = c_.n_inner,
                        .bias = c_.bias,
                        .scale_attn_weights = c_.scale_attn_weights,
                        .scale_attn_by_inverse_layer_idx = c_.scale_attn_by_inverse_layer_idx,
                        .reorder_and_upcast_attn = c_.reorder_and_upcast_attn});
  }
  std::string config_json(DType stored) const override { return gpt2_config_json(c_, stored); }

  ModelPtr with_dropout(double probability) const override {
    Gpt2Config c = c_;
    c.resid_pdrop = c.embd_pdrop = c.attn_pdrop = probability;
    return gpt2_model(c);
  }
  double dropout() const override { return c_.resid_pdrop; }
  ModelPtr with_vocabulary(int64_t size) const override {
    Gpt2Config c = c_;
    c.vocab_size = size;
    return gpt2_model(c);
  }
  ModelPtr with_untied_head() const override {
    Gpt2Config c = c_;
    c.tie_word_embeddings = false;
    return gpt2_model(c);
  }

 protected:
  std::unique_ptr<CausalNet> build(Graph& g, std::optional<Value> rng_key) const override {
    return gpt2_net(g, c_, rng_key);
  }
  bool has_dropout() const override {
    return c_.resid_pdrop > 0 || c_.embd_pdrop > 0 || c_.attn_pdrop > 0;
  }

 private:
  Gpt2Config c_;
};

ModelPtr describe(const Description& d) {
  const Gpt2Settings s = settings_from(settings_table(), d.settings);
  if (s.n_embd % s.n_head != 0)
    usage_error("n-embd must be divisible by n-head; got n-embd {} and n-head {}", s.n_embd,
                s.n_head);
  Gpt2Config c;
  c.vocab_size = d.vocabulary;
  c.n_positions = d.context;
  c.n_layer = s.n_layer;
  c.n_head = s.n_head;
  c.n_embd = s.n_embd;
  c.n_inner = s.n_inner;
  c.bias = s.bias;
  c.scale_attn_weights = s.scale_attn_weights;
  c.scale_attn_by_inverse_layer_idx = s.scale_attn_by_inverse_layer_idx;
  c.reorder_and_upcast_attn = s.reorder_and_upcast_attn;
  c.resid_pdrop = c.embd_pdrop = c.attn_pdrop = d.dropout;
  return gpt2_model(c);
}

}  // namespace

std::vector<Preset> gpt2_presets();

const Architecture& gpt2() {
  static const Architecture architecture = [] {
    Architecture a;
    a.name = "gpt2";
    a.title = "GPT-2";
    a.model_types = {"gpt2"};
    a.class_names = {"GPT2"};
    a.options = options_of(settings_table());
    a.presets = gpt2_presets();
    a.describe = describe;
    a.parse = [](std::string_view text, const std::string& what) {
      return gpt2_model(parse_gpt2_config(text, what));
    };
    return a;
  }();
  return architecture;
}

ModelPtr gpt2_model(const Gpt2Config& config) { return std::make_shared<Gpt2Model>(config); }

Graph gpt2_loss_graph(const Gpt2Config& config, int64_t batch, int64_t length) {
  return gpt2_model(config)->loss(batch, length);
}
Graph gpt2_logits_graph(const Gpt2Config& config, Dim batch, Dim length) {
  return gpt2_model(config)->forward(batch, length);
}
Graph gpt2_decode_graph(const Gpt2Config& config, const DecodeBinding& binding) {
  return gpt2_model(config)->decode(binding);
}

}  // namespace brrr::models
