#pragma once
// The names that files give the parameters of the family's models: one table, a row for each
// model_type.

#include <string>

#include "models/bert/bert_config.h"

namespace brrr::models {

struct BertNames {
  std::string prefix;   // "bert.", which a file of the trunk alone leaves out
  std::string classes;  // of transformers' classes: "Bert"
  // Parts of the trunk, behind the prefix; those of a layer behind "LAYERS.3.".
  std::string layers;  // "encoder.layer"
  std::string query, key, value, attention_output, attention_norm, up, down, output_norm;
  // The head for masked tokens: without the prefix.
  std::string transform, transform_norm, decoder, tied_bias;
  // The heads for a text: a dense layer before the product, "" for none of its own, and the
  // product.
  std::string text_dense, text_output;

  /// A decoder that is not tied has a bias of its own, beside one that nobody reads.
  std::string bias_of_decoder(bool is_tied) const {
    return is_tied ? tied_bias : decoder + ".bias";
  }
};

const BertNames& names_of(BertType type);

}  // namespace brrr::models
