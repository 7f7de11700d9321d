#include "models/llama/llama_model.h"

#include "models/llama/llama.h"

namespace brrr::models {
namespace {

/// The options of `brrr train` that describe a model of the family; the defaults are those of
/// llama-char.
struct LlamaSettings {
  std::string model_type = "llama";
  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t num_key_value_heads = 0;  // 0: as many as heads
  int64_t n_embd = 128;
  int64_t head_dim = 0;           // 0: n_embd / n_head
  int64_t intermediate_size = 0;  // 0: 8/3 of n_embd, rounded up to a multiple of 64
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  int64_t sliding_window = 0;
  bool tie_word_embeddings = true;
};

const OptionTable<LlamaSettings>& llama_table() {
  static const OptionTable<LlamaSettings> table = [] {
    using S = LlamaSettings;
    OptionTable<S> t;
    t.group("model");
    t.choice("model-type", &S::model_type, {{"llama"}, {"mistral"}, {"qwen2"}, {"qwen3"}}, "NAME",
             "llama; mistral (windows), qwen2 (biases of q, k and v), qwen3 (norms of q and k)");
    t.integer("n-layer", &S::n_layer, 1, 4096, "N", "transformer blocks",
              {"num-hidden-layers", "num-layers"});
    t.integer("n-head", &S::n_head, 1, 1 << 18, "N", "attention heads per block",
              {"num-attention-heads", "num-heads"});
    t.integer("num-key-value-heads", &S::num_key_value_heads, 0, 1 << 18, "N",
              "key and value heads, shared by groups of heads (0: as many as heads)",
              {"n-kv-head", "n-head-kv", "num-kv-heads"});
    t.integer("n-embd", &S::n_embd, 1, 1 << 18, "N", "width of the model", {"hidden-size"});
    t.integer("head-dim", &S::head_dim, 0, 1 << 12, "N", "width of a head (0: n-embd / n-head)");
    t.integer("intermediate-size", &S::intermediate_size, 0, 1 << 20, "N",
              "width inside the MLP (0: 8/3 of n-embd, in multiples of 64)");
    t.real("rms-norm-eps", &S::rms_norm_eps,
           {.low = 0, .high = 1, .low_open = true, .high_open = true}, "X",
           "epsilon added to the mean square in norms");
    t.real("rope-theta", &S::rope_theta, {.low = 1, .low_open = true}, "X",
           "base of the rotary frequencies", {"rope-base", "rope-freq-base"});
    t.integer("sliding-window", &S::sliding_window, 0, 1 << 24, "N",
              "keys that a query attends to, including itself (0: all before it)");
    t.flag("tie-word-embeddings", &S::tie_word_embeddings,
           "tie the output head to the token embedding");
    return t;
  }();
  return table;
}

LlamaType type_named(const std::string& name) {
  for (const LlamaType type : {LlamaType::mistral, LlamaType::qwen2, LlamaType::qwen3})
    if (name_of(type) == name) return type;
  return LlamaType::llama;
}

class LlamaModel final : public CausalModel {
 public:
  explicit LlamaModel(const LlamaConfig& config) : c_(config) { c_.validate(); }

  const Architecture& architecture() const override { return llama(); }
  ModelSizes sizes() const override {
    return {.vocabulary = c_.vocab_size,
            .context = longest_context(c_.rope, c_.max_position_embeddings),
            .layers = c_.num_hidden_layers,
            .heads = c_.num_attention_heads,
            .width = c_.hidden_size,
            .query_width = c_.num_attention_heads * c_.head_dim,
            .cache_width = 2 * c_.num_hidden_layers * c_.num_key_value_heads * c_.head_dim};
  }

  std::vector<ParameterInfo> parameters() const override {
    const int64_t V = c_.vocab_size, C = c_.hidden_size, M = c_.intermediate_size, D = c_.head_dim,
                  Q = c_.num_attention_heads * D, KV = c_.num_key_value_heads * D;
    const Fill normal{Fill::Kind::normal, c_.initializer_range};
    const Fill ones{Fill::Kind::ones}, zeros{Fill::Kind::zeros};
    std::vector<ParameterInfo> list;
    const auto add = [&](const std::string& name, Shape shape, Fill fill, bool is_table = false) {
      list.push_back({"model." + name, std::move(shape), fill, is_table});
    };
    const auto add_linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
      add(name + ".weight", {out, in}, normal);
      if (bias) add(name + ".bias", {out}, zeros);
    };
    add("embed_tokens.weight", {V, C}, normal, !c_.tie_word_embeddings);
    for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
      const std::string h = fmt::format("layers.{}.", layer);
      add(h + "input_layernorm.weight", {C}, ones);
      add_linear(h + "self_attn.q_proj", Q, C, c_.qkv_bias);
      add_linear(h + "self_attn.k_proj", KV, C, c_.qkv_bias);
      add_linear(h + "self_attn.v_proj", KV, C, c_.qkv_bias);
      if (c_.qk_norm) {
        add(h + "self_attn.q_norm.weight", {D}, ones);
        add(h + "self_attn.k_norm.weight", {D}, ones);
      }
      add_linear(h + "self_attn.o_proj", C, Q, c_.output_bias);
      add(h + "post_attention_layernorm.weight", {C}, ones);
      add_linear(h + "mlp.gate_proj", M, C, c_.mlp_bias);
      add_linear(h + "mlp.up_proj", M, C, c_.mlp_bias);
      add_linear(h + "mlp.down_proj", C, M, c_.mlp_bias);
    }
    add("norm.weight", {C}, ones);
    if (!c_.tie_word_embeddings) list.push_back({"lm_head.weight", {V, C}, normal});
    return list;
  }

  FileNames file_names() const override {
    FileNames names;
    names.prefix = "model.";
    names.trunk = {"layers.", "embed_tokens.", "norm."};
    names.is_buffer = [](std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); };
    if (c_.tie_word_embeddings) names.tied = {"lm_head.weight", "model.embed_tokens.weight"};
    return names;
  }

  TextEnds text_ends() const override {
    return text_ends_within(c_.vocab_size, c_.bos_token_id, c_.eos_token_ids);
  }

  KeyValues settings() const override {
    LlamaSettings s;
    s.model_type = name_of(c_.type);
    s.n_layer = c_.num_hidden_layers;
    s.n_head = c_.num_attention_heads;
    s.num_key_value_heads = c_.num_key_value_heads;
    s.n_embd = c_.hidden_size;
    s.head_dim = c_.head_dim;
    s.intermediate_size = c_.intermediate_size;
    s.rms_norm_eps = c_.rms_norm_eps;
    s.rope_theta = c_.rope.theta;
    s.sliding_window = c_.sliding_window;
    s.tie_word_embeddings = c_.tie_word_embeddings;
    return settings_to(llama_table(), s);
  }
  std::string config_json(DType stored) const override { return llama_config_json(c_, stored); }

  ModelPtr with_dropout(double probability) const override {
    LlamaConfig c = c_;
    c.attention_dropout = probability;
    return llama_model(c);
  }
  double dropout() const override { return c_.attention_dropout; }
  ModelPtr with_vocabulary(int64_t size) const override {
    LlamaConfig c = c_;
    c.vocab_size = size;
    return llama_model(c);
  }
  ModelPtr with_untied_head() const override {
    LlamaConfig c = c_;
    c.tie_word_embeddings = false;
    return llama_model(c);
  }

 protected:
  std::unique_ptr<CausalNet> build(Graph& g, std::optional<Value> rng_key) const override {
    return llama_net(g, c_, rng_key);
  }
  bool has_dropout() const override { return c_.attention_dropout > 0; }

 private:
  LlamaConfig c_;
};

ModelPtr describe_llama(const Description& d) {
  const LlamaSettings s = settings_from(llama_table(), d.settings);
  if (s.head_dim == 0 && s.n_embd % s.n_head != 0)
    usage_error("n-embd must be divisible by n-head; got n-embd {} and n-head {}", s.n_embd,
                s.n_head);
  LlamaConfig c;
  c.type = type_named(s.model_type);
  c.vocab_size = d.vocabulary;
  c.max_position_embeddings = d.context;
  c.hidden_size = s.n_embd;
  c.num_hidden_layers = s.n_layer;
  c.num_attention_heads = s.n_head;
  c.num_key_value_heads = s.num_key_value_heads > 0 ? s.num_key_value_heads : s.n_head;
  if (s.n_head % c.num_key_value_heads != 0)
    usage_error("n-head must be a multiple of num-key-value-heads; got n-head {} and {}", s.n_head,
                c.num_key_value_heads);
  c.head_dim = s.head_dim > 0 ? s.head_dim : s.n_embd / s.n_head;
  if (c.head_dim % 2 != 0)
    usage_error("the width of a head must be even, for rotary embeddings; got {}", c.head_dim);
  c.intermediate_size =
      s.intermediate_size > 0 ? s.intermediate_size : (s.n_embd * 8 / 3 + 63) / 64 * 64;
  c.rms_norm_eps = s.rms_norm_eps;
  c.rope.theta = s.rope_theta;
  c.sliding_window = s.sliding_window;
  if (c.sliding_window > 0 && c.type == LlamaType::llama)
    usage_error("--sliding-window needs --model-type mistral, qwen2 or qwen3; got llama");
  c.tie_word_embeddings = s.tie_word_embeddings;
  c.qkv_bias = c.type == LlamaType::qwen2;
  c.qk_norm = c.type == LlamaType::qwen3;
  c.attention_dropout = d.dropout;
  return llama_model(c);
}

}  // namespace

std::vector<Preset> llama_presets();

const Architecture& llama() {
  static const Architecture architecture = [] {
    Architecture a;
    a.name = "llama";
    a.title = "Llama";
    a.model_types = {"llama", "mistral", "qwen2", "qwen3"};
    a.class_names = {"Llama", "Mistral", "Qwen2For", "Qwen3For"};
    a.options = options_of(llama_table());
    a.presets = llama_presets();
    a.describe = describe_llama;
    a.parse = [](std::string_view text, const std::string& what) {
      return llama_model(parse_llama_config(text, what));
    };
    return a;
  }();
  return architecture;
}

ModelPtr llama_model(const LlamaConfig& config) { return std::make_shared<LlamaModel>(config); }

}  // namespace brrr::models
