// The fields of the BERT family: config.json both ways, options and checks.

#include "models/bert/bert_config.h"
#include "models/configured_model.h"
#include "models/task_json.h"

namespace brrr::models {
namespace {

using io::Json;

// transformers takes no other numbers: positions leave out where this token stands.
constexpr int64_t kMpnetBuckets = 32, kMpnetPad = 1;

bool is_distilbert(const BertConfig& c) { return c.type == BertType::distilbert; }
bool is_mpnet(const BertConfig& c) { return c.type == BertType::mpnet; }
bool has_types(const BertConfig& c) { return c.type == BertType::bert || c.is_roberta(); }

/// The key of DistilBERT's files, or of all others.
std::function<const char*(const BertConfig&)> key_by_type(const char* distilbert,
                                                          const char* others) {
  return [=](const BertConfig& c) { return is_distilbert(c) ? distilbert : others; };
}

}  // namespace

const Spellings& bert_types() {
  static const Spellings types = {
      {"bert"}, {"roberta"}, {"xlm-roberta"}, {"distilbert"}, {"mpnet"}};
  return types;
}

const ConfigTable<BertConfig>& BertConfig::table() {
  static const ConfigTable<BertConfig> table = [] {
    using C = BertConfig;
    C described;  // bert-mini
    described.num_hidden_layers = described.num_attention_heads = 4;
    described.hidden_size = 256;
    described.intermediate_size = 0;  // complete_bert() derives it
    ConfigTable<C> t(described);
    t.choice("model_type", &C::type, bert_types())
        .option("model-type",
                "bert; roberta and xlm-roberta (positions start after padding), distilbert (no "
                "token types), mpnet (scores have a relative position bias)");
    t.size("vocab_size", &C::vocab_size, 1 << 24).required();
    t.layers("num_hidden_layers", &C::num_hidden_layers)
        .named(key_by_type("n_layers", "num_hidden_layers"));
    t.heads("num_attention_heads", &C::num_attention_heads)
        .named(key_by_type("n_heads", "num_attention_heads"));
    t.width("hidden_size", &C::hidden_size).named(key_by_type("dim", "hidden_size"));
    t.mlp_width("intermediate_size", &C::intermediate_size, "4 times n-embd")
        .named(key_by_type("hidden_dim", "intermediate_size"));
    t.choice("hidden_act", &C::hidden_act, activation_choices())
        .named(key_by_type("activation", "hidden_act"))
        .option("hidden-act", "activation of the MLP: gelu (erf), gelu_new (tanh), relu or silu");
    t.epsilon("layer_norm_eps", &C::layer_norm_eps)
        .when([](const C& c) { return !is_distilbert(c); })
        .option("layer-norm-eps", "epsilon added to the variance in norms");
    t.tied("tie_word_embeddings", &C::tie_word_embeddings);
    t.size("max_position_embeddings", &C::max_position_embeddings, 1 << 24);
    t.integer("type_vocab_size", &C::type_vocab_size, 0, 1 << 16).when(has_types);
    t.deviation("initializer_range", &C::initializer_range);
    t.dropout("hidden_dropout_prob", &C::hidden_dropout_prob)
        .named(key_by_type("dropout", "hidden_dropout_prob"));
    t.dropout("attention_probs_dropout_prob", &C::attention_probs_dropout_prob)
        .named(key_by_type("attention_dropout", "attention_probs_dropout_prob"));
    t.dropout("classifier_dropout", &C::classifier_dropout)
        .named(key_by_type("seq_classif_dropout", "classifier_dropout"))
        .when([](const C& c) { return !is_mpnet(c); });
    t.integer("relative_attention_num_buckets", &C::relative_attention_num_buckets, kMpnetBuckets,
              kMpnetBuckets)
        .when(is_mpnet);
    t.integer("pad_token_id", &C::pad_token_id, 0, 1 << 24);
    t.token("bos_token_id", &C::bos_token_id).written([](const C& c) { return !is_distilbert(c); });
    t.token("eos_token_id", &C::eos_token_id).written([](const C& c) { return !is_distilbert(c); });
    t.constant("position_embedding_type", {"absolute"}).written(has_types);
    t.constant("use_cache", {true, false}).written(has_types);
    // How the table of positions begins; it is a parameter all the same.
    t.custom("sinusoidal_pos_embds", {}, [](const C&) { return Json(false); }).when(is_distilbert);
    t.insisted("is_decoder", {false});
    t.insisted("add_cross_attention", {false});
    return t;
  }();
  return table;
}

ConfigLimits BertConfig::limits() const {
  return ConfigLimits(bert_types()[static_cast<size_t>(type)][0]);
}

void BertConfig::validate() const {
  table().check(*this);
  const ConfigLimits limits = this->limits();
  limits.multiple("hidden_size", hidden_size, "num_attention_heads", num_attention_heads);
  if (pad_token_id >= vocab_size)
    limits.fail("pad_token_id", fmt::format("a token below vocab_size {}", vocab_size),
                pad_token_id);
  if (is_mpnet(*this) && pad_token_id != kMpnetPad)
    limits.fail("pad_token_id", fmt::format("{} for mpnet", kMpnetPad), pad_token_id);
  if (context() < 1)
    limits.fail("max_position_embeddings",
                fmt::format("more than the {} rows that no token has (pad_token_id {} and those "
                            "before it)",
                            first_position(), pad_token_id),
                max_position_embeddings);
  const bool has_labels =
      task.head == Head::classes || task.head == Head::values || task.head == Head::token_classes;
  if (has_labels) limits.size("the number of labels", std::ssize(task.labels), kMostLabels);
}

BertConfig parse_bert_config(std::string_view text, const std::string& what) {
  const ConfigReader keys(text, what);
  // The defaults of transformers' classes, for keys that a file leaves out.
  BertConfig d;
  if (keys.has("model_type"))
    d.type = static_cast<BertType>(read_choice(keys, "model_type", bert_types()));
  d.pad_token_id = d.is_roberta() || is_mpnet(d);
  d.type_vocab_size = has_types(d) ? 2 : 0;
  d.classifier_dropout = is_distilbert(d) ? 0.2 : keys.number("hidden_dropout_prob", 0.1);
  d.task = read_encoder_task(keys);
  return config_from(keys, d, [](BertConfig&) {},
                     {"num_labels", "id2label", "label2id", "problem_type", "classifier_dropout"});
}

std::string BertConfig::json(DType stored) const {
  Json labels = Json::object();
  write_labels(task, labels);
  return config_json_of(*this, stored, names_of(type).classes + class_ending(task.head),
                        std::move(labels));
}

}  // namespace brrr::models
