#pragma once
// The sizes and constants of a model of the BERT family, with the names of Hugging Face's
// config.json for BERT; DistilBERT's own names are read and written where its files have them. The
// defaults are BERT base.

#include <cstdint>
#include <string>
#include <string_view>

#include "models/activation.h"
#include "models/config_table.h"
#include "models/encoder.h"

namespace brrr::models {

enum class BertType { bert, roberta, xlm_roberta, distilbert, mpnet };

/// The model_type of config.json for each, as "xlm-roberta".
const Spellings& bert_types();

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
  ModelSizes sizes() const {
    return {.vocabulary = vocab_size,
            .context = context(),
            .layers = num_hidden_layers,
            .heads = num_attention_heads,
            .width = hidden_size,
            .query_width = hidden_size,
            .causal = false};
  }
  FileNames file_names() const;
  TextEnds text_ends() const { return text_ends_within(vocab_size, bos_token_id, {eos_token_id}); }
  /// Throws UserError naming the field, what is allowed and what it holds.
  void validate() const;
  ConfigLimits limits() const;
  static const ConfigTable<BertConfig>& table();
  static const Architecture& architecture();
  ModelPtr model() const;
  /// The text of a config.json with every key that transformers needs.
  std::string json(DType stored = DType::f32) const;
  bool operator==(const BertConfig&) const = default;
};

/// The names that files give the parameters of a model_type.
struct BertNames {
  std::string prefix;   // "bert.", which a file of the trunk alone leaves out
  std::string classes;  // of transformers' classes: "Bert"
  // Parts of the trunk, behind the prefix; those of a layer behind "LAYERS.3.".
  std::string layers;  // "encoder.layer"
  std::string query, key, value, attention_output, attention_norm, up, down, output_norm;
  // The head for masked tokens: without the prefix.
  std::string transform, transform_norm, decoder, tied_bias;
  // The head for whole texts: a dense layer, "" where the pooler serves as one, and the output
  // layer.
  std::string text_dense, text_output;

  /// A decoder that is not tied has a bias of its own, beside one that nobody reads.
  std::string bias_of_decoder(bool is_tied) const {
    return is_tied ? tied_bias : decoder + ".bias";
  }
};

const BertNames& names_of(BertType type);

/// Reads the text of a config.json; `what` names it in errors. A feature that is not supported is
/// refused by name and value. Throws UserError.
BertConfig parse_bert_config(std::string_view text, const std::string& what);

/// The graphs of the family (Devlin et al. 2018): learnt positions, norms behind the residual sums,
/// every token sees all of its text. RoBERTa (Liu et al. 2019), DistilBERT (Sanh et al. 2019) and
/// MPNet (Song et al. 2020) differ in names, heads and, for MPNet, a learnt bias of the scores by
/// distance. The config outlives the net.
std::unique_ptr<EncoderNet> bert_net(Parameters& p, const BertConfig& config,
                                     std::optional<Value> rng_key);

}  // namespace brrr::models
