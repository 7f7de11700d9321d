#include "models/bert/bert_model.h"

#include <algorithm>

#include "models/bert/bert.h"
#include "models/bert/bert_names.h"

namespace brrr::models {
namespace {

/// The options of `brrr train` that describe a model of the family; the defaults are those of
/// bert-mini.
struct BertSettings {
  std::string model_type = "bert";
  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t n_embd = 256;
  int64_t intermediate_size = 0;  // 0: 4 n_embd
  std::string hidden_act = "gelu";
  double layer_norm_eps = 1e-12;
  bool tie_word_embeddings = true;
};

const OptionTable<BertSettings>& bert_table() {
  static const OptionTable<BertSettings> table = [] {
    using S = BertSettings;
    OptionTable<S> t;
    t.group("model");
    t.choice("model-type", &S::model_type,
             {{"bert"}, {"roberta"}, {"xlm-roberta"}, {"distilbert"}, {"mpnet"}}, "NAME",
             "bert; roberta and xlm-roberta (positions start after padding), distilbert (no token "
             "types), mpnet (scores have a relative position bias)");
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
    t.flag("tie-word-embeddings", &S::tie_word_embeddings,
           "tie the output head to the token embedding");
    return t;
  }();
  return table;
}

class BertModel final : public EncoderModel {
 public:
  explicit BertModel(const BertConfig& config) : c_(config), n_(names_of(config.type)) {
    c_.validate();
  }

  const Architecture& architecture() const override { return bert(); }
  ModelSizes sizes() const override {
    return {.vocabulary = c_.vocab_size,
            .context = c_.context(),
            .layers = c_.num_hidden_layers,
            .heads = c_.num_attention_heads,
            .width = c_.hidden_size,
            .query_width = c_.hidden_size,
            .causal = false};
  }

  std::vector<ParameterInfo> parameters() const override {
    const int64_t C = c_.hidden_size, M = c_.intermediate_size;
    Listing list{c_.initializer_range, {}};
    const std::string embeddings = n_.prefix + "embeddings.";
    const bool is_read = c_.task.head == Head::masked_token && c_.tie_word_embeddings;
    list.table(embeddings + "word_embeddings.weight", {c_.vocab_size, C}, !is_read);
    list.table(embeddings + "position_embeddings.weight", {c_.max_position_embeddings, C}, true);
    if (c_.type_vocab_size > 0)
      list.table(embeddings + "token_type_embeddings.weight", {c_.type_vocab_size, C}, true);
    list.norm(embeddings + "LayerNorm", C);
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) {
      const std::string layer = fmt::format("{}{}.{}.", n_.prefix, n_.layers, i);
      for (const std::string& part : {n_.query, n_.key, n_.value, n_.attention_output})
        list.linear(layer + part, C, C);
      list.norm(layer + n_.attention_norm, C);
      list.linear(layer + n_.up, M, C);
      list.linear(layer + n_.down, C, M);
      list.norm(layer + n_.output_norm, C);
    }
    if (c_.type == BertType::mpnet)
      list.table(n_.prefix + "encoder.relative_attention_bias.weight",
                 {c_.relative_attention_num_buckets, c_.num_attention_heads}, true);
    const size_t trunk = list.all.size();
    add_head(list);
    for (size_t i = trunk; i < list.all.size(); ++i)
      // BERT's pooler learns in pre-training, and serves every task.
      list.all[i].part = list.all[i].name.starts_with(n_.prefix) ? Part::pooler : Part::head;
    return list.all;
  }

  FileNames file_names() const override {
    FileNames names;
    names.prefix = n_.prefix;
    names.trunk = {"embeddings.", n_.layers + "."};
    names.is_buffer = [](std::string_view name) { return name.ends_with(".position_ids"); };
    // Files that TensorFlow's checkpoints were turned into call a norm's parameters by other names.
    for (const ParameterInfo& p : parameters()) {
      const size_t at = p.name.rfind("LayerNorm.");
      if (at == std::string::npos) continue;
      const std::string norm = p.name.substr(0, at) + "LayerNorm.";
      const std::string older = norm + (p.name.ends_with(".bias") ? "beta" : "gamma");
      names.renamed.emplace_back(older, p.name);
      if (older.starts_with(n_.prefix))
        names.renamed.emplace_back(older.substr(n_.prefix.size()), p.name);
    }
    if (c_.task.head == Head::masked_token) {
      const std::string bias = n_.bias_of_decoder(c_.tie_word_embeddings);
      names.renamed.emplace_back(n_.bias_of_decoder(!c_.tie_word_embeddings), bias);
      if (c_.tie_word_embeddings)
        names.tied = {n_.decoder + ".weight", n_.prefix + "embeddings.word_embeddings.weight"};
    }
    return names;
  }

  TextEnds text_ends() const override {
    return text_ends_within(c_.vocab_size, c_.bos_token_id, {c_.eos_token_id});
  }

  KeyValues settings() const override {
    BertSettings s;
    s.model_type = name_of(c_.type);
    s.n_layer = c_.num_hidden_layers;
    s.n_head = c_.num_attention_heads;
    s.n_embd = c_.hidden_size;
    s.intermediate_size = c_.intermediate_size;
    s.hidden_act = name_of(c_.hidden_act);
    s.layer_norm_eps = c_.layer_norm_eps;
    s.tie_word_embeddings = c_.tie_word_embeddings;
    return settings_to(bert_table(), s);
  }
  std::string config_json(DType stored) const override { return bert_config_json(c_, stored); }

  ModelPtr with_dropout(double probability) const override {
    BertConfig c = c_;
    c.hidden_dropout_prob = c.attention_probs_dropout_prob = c.classifier_dropout = probability;
    return bert_model(c);
  }
  double dropout() const override { return c_.hidden_dropout_prob; }
  ModelPtr with_vocabulary(int64_t size) const override {
    BertConfig c = c_;
    c.vocab_size = size;
    return bert_model(c);
  }
  ModelPtr with_untied_head() const override {
    BertConfig c = c_;
    c.tie_word_embeddings = false;
    return bert_model(c);
  }

  Task task() const override { return c_.task; }
  ModelPtr with_task(const Task& task) const override {
    if (task.head == Head::next_token)
      user_error("[bert] an encoder has no head that predicts the next token");
    BertConfig c = c_;
    c.task = task;
    return bert_model(c);
  }
  bool has_token_types() const override { return c_.type_vocab_size > 1; }

 protected:
  std::unique_ptr<EncoderNet> build(Graph& g, std::optional<Value> rng_key) const override {
    return bert_net(g, c_, rng_key);
  }
  bool has_dropout() const override {
    return c_.hidden_dropout_prob > 0 || c_.attention_probs_dropout_prob > 0 ||
           c_.classifier_dropout > 0;
  }

 private:
  struct Listing {
    double deviation;
    std::vector<ParameterInfo> all;
    void table(const std::string& name, Shape shape, bool is_table) {
      all.push_back({name, std::move(shape), {Fill::Kind::normal, deviation}, is_table});
    }
    void norm(const std::string& name, int64_t width) {
      all.push_back({name + ".weight", {width}, {Fill::Kind::ones}});
      all.push_back({name + ".bias", {width}, {Fill::Kind::zeros}});
    }
    void linear(const std::string& name, int64_t out, int64_t in) {
      all.push_back({name + ".weight", {out, in}, {Fill::Kind::normal, deviation}});
      all.push_back({name + ".bias", {out}, {Fill::Kind::zeros}});
    }
  };

  void add_head(Listing& list) const {
    const int64_t C = c_.hidden_size;
    const int64_t outputs = std::ssize(c_.task.labels);
    switch (c_.task.head) {
      case Head::masked_token:
        list.linear(n_.transform, C, C);
        list.norm(n_.transform_norm, C);
        if (!c_.tie_word_embeddings) list.table(n_.decoder + ".weight", {c_.vocab_size, C}, false);
        list.all.push_back(
            {n_.bias_of_decoder(c_.tie_word_embeddings), {c_.vocab_size}, {Fill::Kind::zeros}});
        break;
      case Head::classes:
      case Head::values:
        list.linear(c_.type == BertType::bert ? n_.prefix + "pooler.dense" : n_.text_dense, C, C);
        list.linear(n_.text_output, outputs, C);
        break;
      case Head::token_classes:
        list.linear("classifier", outputs, C);
        break;
      case Head::embedding:
      case Head::next_token:
        break;
    }
  }

  BertConfig c_;
  const BertNames& n_;
};

ModelPtr describe_bert(const Description& d) {
  const BertSettings s = settings_from(bert_table(), d.settings);
  if (s.n_embd % s.n_head != 0)
    usage_error("n-embd must be divisible by n-head; got n-embd {} and n-head {}", s.n_embd,
                s.n_head);
  BertConfig c;
  c.type = bert_type_named(s.model_type);
  c.vocab_size = d.vocabulary;
  c.hidden_size = s.n_embd;
  c.num_hidden_layers = s.n_layer;
  c.num_attention_heads = s.n_head;
  c.intermediate_size = s.intermediate_size > 0 ? s.intermediate_size : 4 * s.n_embd;
  c.hidden_act = activation_named(s.hidden_act);
  c.layer_norm_eps = s.layer_norm_eps;
  c.tie_word_embeddings = s.tie_word_embeddings;
  c.type_vocab_size = c.type == BertType::bert ? 2 : c.is_roberta() ? 1 : 0;
  constexpr int64_t kPadOfMpnet = 1;
  const bool is_mpnet = c.type == BertType::mpnet;
  c.pad_token_id = d.pad_token.value_or(is_mpnet ? kPadOfMpnet : 0);
  if (is_mpnet && c.pad_token_id != kPadOfMpnet)
    usage_error(
        "--model-type mpnet needs a tokenizer that pads with token {}, as published ones do; this "
        "one pads with token {}: name the folder of an MPNet by --tokenizer, or take another type",
        kPadOfMpnet, c.pad_token_id);
  c.max_position_embeddings = d.context + c.first_position();
  c.hidden_dropout_prob = c.attention_probs_dropout_prob = c.classifier_dropout = d.dropout;
  return bert_model(c);
}

}  // namespace

std::vector<Preset> bert_presets();

const Architecture& bert() {
  static const Architecture architecture = [] {
    Architecture a;
    a.name = "bert";
    a.title = "BERT";
    a.model_types = {"bert", "roberta", "xlm-roberta", "distilbert", "mpnet"};
    a.class_names = {"Bert", "Roberta", "XLMRoberta", "DistilBert", "MPNet"};
    a.options = options_of(bert_table());
    a.presets = bert_presets();
    a.head = Head::masked_token;
    a.describe = describe_bert;
    a.parse = [](std::string_view text, const std::string& what) {
      return bert_model(parse_bert_config(text, what));
    };
    return a;
  }();
  return architecture;
}

ModelPtr bert_model(const BertConfig& config) { return std::make_shared<BertModel>(config); }

}  // namespace brrr::models
