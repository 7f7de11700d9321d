#pragma once
// The sizes and constants of a model of the BERT family, with the names of Hugging Face's
// config.json for BERT; DistilBERT's own names are read and written where its files have them. A
// plain value; the defaults are BERT base. parse_bert_config() and bert_config_json() are its
// config.json.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "models/activation.h"
#include "models/task.h"

namespace brrr::models {

enum class BertType { bert, roberta, xlm_roberta, distilbert, mpnet };

/// "xlm-roberta": the model_type of config.json.
const std::string& name_of(BertType type);
/// Throws InternalError for another name.
BertType bert_type_named(std::string_view model_type);

struct BertConfig {
  BertType type = BertType::bert;
  int64_t vocab_size = 30522;             // V
  int64_t max_position_embeddings = 512;  // rows of the table of positions
  int64_t hidden_size = 768;              // width, C
  int64_t num_hidden_layers = 12;         // L
  int64_t num_attention_heads = 12;       // H, which divides C
  int64_t intermediate_size = 3072;       // M
  int64_t type_vocab_size = 2;            // token types; 0: no table of them
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;
  double hidden_dropout_prob = 0.1;  // of the embedding and of what attention and MLP add
  double attention_probs_dropout_prob = 0.1;
  double classifier_dropout = 0.1;  // before the product of a head
  Activation hidden_act = Activation::gelu;
  int64_t relative_attention_num_buckets = 32;  // mpnet
  bool tie_word_embeddings = true;              // of the head for masked tokens
  int64_t pad_token_id = 0;
  int64_t bos_token_id = -1, eos_token_id = -1;  // -1: none
  Task task{.head = Head::masked_token};
  /// Keys of a config.json that Brrr does not know, as a JSON object: they are kept. "": none.
  std::string unknown_keys;

  bool is_roberta() const { return type == BertType::roberta || type == BertType::xlm_roberta; }
  /// The row of the table of positions for the first token: RoBERTa leaves those up to that of
  /// padding out, and so does MPNet, whose padding is token 1 by the published code.
  int64_t first_position() const {
    return is_roberta() || type == BertType::mpnet ? pad_token_id + 1 : 0;
  }
  /// The longest text in tokens, T.
  int64_t context() const { return max_position_embeddings - first_position(); }
  /// Throws UserError naming the field, what is allowed and what it holds.
  void validate() const;
  bool operator==(const BertConfig&) const = default;
};

/// Reads the text of a config.json; `what` names it in errors. A feature that is not supported is
/// refused by name and value. Throws UserError.
BertConfig parse_bert_config(std::string_view text, const std::string& what);
/// The text of a config.json with every key that transformers needs.
std::string bert_config_json(const BertConfig& config, DType stored = DType::f32);

}  // namespace brrr::models
