// config.json of a model of the BERT family, both ways.

#include <algorithm>
#include <array>
#include <map>

#include "base/errors.h"
#include "models/bert/bert_config.h"
#include "models/bert/bert_names.h"
#include "models/config_limits.h"
#include "models/config_reader.h"
#include "models/task_json.h"

namespace brrr::models {

using io::Json;

namespace {

// transformers takes no other numbers: positions leave out where this token stands.
constexpr int64_t kMpnetBuckets = 32, kMpnetPad = 1;

const std::map<BertType, std::string>& bert_types() {
  static const std::map<BertType, std::string> all = {{BertType::bert, "bert"},
                                                      {BertType::roberta, "roberta"},
                                                      {BertType::xlm_roberta, "xlm-roberta"},
                                                      {BertType::distilbert, "distilbert"},
                                                      {BertType::mpnet, "mpnet"}};
  return all;
}

/// The endings of transformers' classes and their heads; the last is that of any other class, whose
/// trunk alone is read.
struct ClassEnding {
  const char* text;
  Head head;
};
constexpr std::array kClassEndings = {ClassEnding{"ForMaskedLM", Head::masked_token},
                                      ClassEnding{"ForPreTraining", Head::masked_token},
                                      ClassEnding{"ForSequenceClassification", Head::classes},
                                      ClassEnding{"ForTokenClassification", Head::token_classes},
                                      ClassEnding{"Model", Head::embedding}};

const char* ending_of(Head head) {
  if (head == Head::values) head = Head::classes;
  for (const ClassEnding& ending : kClassEndings)
    if (ending.head == head) return ending.text;
  return "Model";
}

}  // namespace

const std::string& name_of(BertType type) { return bert_types().at(type); }

BertType bert_type_named(std::string_view model_type) {
  for (const auto& [type, name] : bert_types())
    if (name == model_type) return type;
  throw InternalError("no model_type of the family: " + std::string(model_type));
}

void BertConfig::validate() const {
  const ConfigLimits limits(name_of(type));
  limits.size("vocab_size", vocab_size, int64_t{1} << 24);
  limits.size("max_position_embeddings", max_position_embeddings, int64_t{1} << 24);
  limits.size("hidden_size", hidden_size, int64_t{1} << 18);
  limits.size("num_hidden_layers", num_hidden_layers, 4096);
  limits.size("num_attention_heads", num_attention_heads, hidden_size);
  limits.size("intermediate_size", intermediate_size, int64_t{1} << 20);
  if (type_vocab_size < 0 || type_vocab_size > 1 << 16)
    limits.fail("type_vocab_size", "between 0 and 65536", type_vocab_size);
  if (hidden_size % num_attention_heads != 0)
    limits.fail("hidden_size",
                fmt::format("a multiple of num_attention_heads {}", num_attention_heads),
                hidden_size);
  if (pad_token_id < 0 || pad_token_id >= vocab_size)
    limits.fail("pad_token_id", fmt::format("a token below vocab_size {}", vocab_size),
                pad_token_id);
  if (type == BertType::mpnet && pad_token_id != kMpnetPad)
    limits.fail("pad_token_id", fmt::format("{} for mpnet", kMpnetPad), pad_token_id);
  if (context() < 1)
    limits.fail("max_position_embeddings",
                fmt::format("more than the {} rows that no token has (pad_token_id {} and those "
                            "before it)",
                            first_position(), pad_token_id),
                max_position_embeddings);
  if (type == BertType::mpnet && relative_attention_num_buckets != kMpnetBuckets)
    limits.fail("relative_attention_num_buckets", fmt::format("{}", kMpnetBuckets),
                relative_attention_num_buckets);
  limits.epsilon("layer_norm_eps", layer_norm_eps);
  limits.deviation("initializer_range", initializer_range);
  limits.probability("hidden_dropout_prob", hidden_dropout_prob);
  limits.probability("attention_probs_dropout_prob", attention_probs_dropout_prob);
  limits.probability("classifier_dropout", classifier_dropout);
  const bool has_labels =
      task.head == Head::classes || task.head == Head::values || task.head == Head::token_classes;
  if (has_labels) limits.size("the number of labels", std::ssize(task.labels), kMostLabels);
}

namespace {

Task read_task(const ConfigReader& keys) {
  Task task{.head = Head::embedding};
  const std::string name = class_name(keys);
  for (const ClassEnding& ending : kClassEndings)
    if (name.ends_with(ending.text)) {
      task.head = ending.head;
      break;
    }
  if (task.head == Head::classes) return read_text_task(keys);
  if (task.head == Head::token_classes) task.labels = read_labels(keys);
  return task;
}

void refuse_bert_variants(const ConfigReader& keys) {
  keys.insist("is_decoder", false);
  keys.insist("add_cross_attention", false);
  const std::string positions = keys.text("position_embedding_type", "absolute");
  if (positions != "absolute")
    user_error("{}: position_embedding_type = {} is not supported; expected \"absolute\"",
               keys.what(), io::in_quotes(positions));
  keys.refuse_quantization();
}

/// The keys of DistilBERT and of the others.
struct BertKeys {
  const char *width, *layers, *heads, *mlp, *dropout, *attention_dropout, *activation;
};
BertKeys keys_of(BertType type) {
  if (type == BertType::distilbert)
    return {"dim",     "n_layers",          "n_heads",   "hidden_dim",
            "dropout", "attention_dropout", "activation"};
  return {"hidden_size",       "num_hidden_layers",   "num_attention_heads",
          "intermediate_size", "hidden_dropout_prob", "attention_probs_dropout_prob",
          "hidden_act"};
}

Json written_bert(const BertConfig& c, DType stored) {
  const BertKeys k = keys_of(c.type);
  const std::string name = names_of(c.type).classes + ending_of(c.task.head);
  Json json{{"architectures", {name}},
            {k.width, c.hidden_size},
            {k.layers, c.num_hidden_layers},
            {k.heads, c.num_attention_heads},
            {k.mlp, c.intermediate_size},
            {k.dropout, c.hidden_dropout_prob},
            {k.attention_dropout, c.attention_probs_dropout_prob},
            {k.activation, name_of(c.hidden_act)},
            {"dtype", dtype_text(stored)},
            {"initializer_range", c.initializer_range},
            {"max_position_embeddings", c.max_position_embeddings},
            {"model_type", name_of(c.type)},
            {"pad_token_id", c.pad_token_id},
            {"tie_word_embeddings", c.tie_word_embeddings},
            {"torch_dtype", dtype_text(stored)},
            {"vocab_size", c.vocab_size}};
  if (c.type == BertType::distilbert) {
    json["seq_classif_dropout"] = c.classifier_dropout;
    json["sinusoidal_pos_embds"] = false;  // how the table begins; it is a parameter all the same
  } else {
    json["layer_norm_eps"] = c.layer_norm_eps;
    json["bos_token_id"] = ids_text({c.bos_token_id}, c.vocab_size);
    json["eos_token_id"] = ids_text({c.eos_token_id}, c.vocab_size);
  }
  if (c.type == BertType::bert || c.is_roberta()) {
    json["type_vocab_size"] = c.type_vocab_size;
    json["classifier_dropout"] = c.classifier_dropout;
    json["position_embedding_type"] = "absolute";
    json["use_cache"] = true;
  }
  if (c.type == BertType::mpnet)
    json["relative_attention_num_buckets"] = c.relative_attention_num_buckets;
  write_labels(c.task, json);
  return json;
}

}  // namespace

BertConfig parse_bert_config(std::string_view text, const std::string& what) {
  ConfigReader keys(text, what,
                    "the configuration needs vocab_size, the width, the number of layers and of "
                    "heads, and the width inside the MLP");
  BertConfig c;
  c.type = bert_type_named(keys.text("model_type", "bert"));
  const BertKeys k = keys_of(c.type);
  const bool distils = c.type == BertType::distilbert;
  // The defaults of transformers' classes, for keys that a file leaves out.
  c.pad_token_id = keys.integer("pad_token_id", c.is_roberta() || c.type == BertType::mpnet);
  c.vocab_size = keys.required_integer("vocab_size");
  c.hidden_size = keys.required_integer(k.width);
  c.num_hidden_layers = keys.required_integer(k.layers);
  c.num_attention_heads = keys.required_integer(k.heads);
  c.intermediate_size = keys.required_integer(k.mlp);
  c.max_position_embeddings = keys.integer("max_position_embeddings", 512);
  const bool has_types = c.type == BertType::bert || c.is_roberta();
  c.type_vocab_size = has_types ? keys.integer("type_vocab_size", 2) : 0;
  c.layer_norm_eps = distils ? 1e-12 : keys.number("layer_norm_eps", 1e-12);
  c.initializer_range = keys.number("initializer_range", c.initializer_range);
  c.hidden_dropout_prob = keys.number(k.dropout, 0.1);
  c.attention_probs_dropout_prob = keys.number(k.attention_dropout, 0.1);
  c.hidden_act = read_activation(keys, k.activation, Activation::gelu);
  c.relative_attention_num_buckets = keys.integer("relative_attention_num_buckets", kMpnetBuckets);
  c.tie_word_embeddings = keys.flag("tie_word_embeddings", true);
  c.bos_token_id = keys.integer("bos_token_id", -1);
  c.eos_token_id = keys.integer("eos_token_id", -1);
  c.task = read_task(keys);
  const char* head_dropout = distils ? "seq_classif_dropout" : "classifier_dropout";
  c.classifier_dropout = c.type == BertType::mpnet
                             ? c.hidden_dropout_prob
                             : keys.number(head_dropout, distils ? 0.2 : c.hidden_dropout_prob);
  try {
    c.validate();
  } catch (const UserError& e) {
    user_error("{}: {}", what, e.what());
  }
  refuse_bert_variants(keys);
  c.unknown_keys = keys.unknown_keys(written_bert(c, DType::f32),
                                     {"num_labels", "id2label", "label2id", "problem_type",
                                      "is_decoder", "add_cross_attention", "classifier_dropout"});
  return c;
}

std::string bert_config_json(const BertConfig& config, DType stored) {
  return config_text(written_bert(config, stored), config.unknown_keys);
}

}  // namespace brrr::models
