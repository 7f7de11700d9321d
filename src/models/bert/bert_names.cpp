#include "models/bert/bert_names.h"

#include <map>

namespace brrr::models {
namespace {

BertNames bert_like(std::string prefix, std::string classes) {
  BertNames n;
  n.prefix = std::move(prefix);
  n.classes = std::move(classes);
  n.layers = "encoder.layer";
  n.query = "attention.self.query";
  n.key = "attention.self.key";
  n.value = "attention.self.value";
  n.attention_output = "attention.output.dense";
  n.attention_norm = "attention.output.LayerNorm";
  n.up = "intermediate.dense";
  n.down = "output.dense";
  n.output_norm = "output.LayerNorm";
  n.transform = "cls.predictions.transform.dense";
  n.transform_norm = "cls.predictions.transform.LayerNorm";
  n.decoder = "cls.predictions.decoder";
  n.tied_bias = "cls.predictions.bias";
  n.text_output = "classifier";
  return n;
}

BertNames roberta_like(std::string prefix, std::string classes) {
  BertNames n = bert_like(std::move(prefix), std::move(classes));
  n.transform = "lm_head.dense";
  n.transform_norm = "lm_head.layer_norm";
  n.decoder = "lm_head.decoder";
  n.tied_bias = "lm_head.bias";
  n.text_dense = "classifier.dense";
  n.text_output = "classifier.out_proj";
  return n;
}

BertNames mpnet_names() {
  BertNames n = roberta_like("mpnet.", "MPNet");
  n.query = "attention.attn.q";
  n.key = "attention.attn.k";
  n.value = "attention.attn.v";
  n.attention_output = "attention.attn.o";
  n.attention_norm = "attention.LayerNorm";
  return n;
}

BertNames distilbert_names() {
  BertNames n;
  n.prefix = "distilbert.";
  n.classes = "DistilBert";
  n.layers = "transformer.layer";
  n.query = "attention.q_lin";
  n.key = "attention.k_lin";
  n.value = "attention.v_lin";
  n.attention_output = "attention.out_lin";
  n.attention_norm = "sa_layer_norm";
  n.up = "ffn.lin1";
  n.down = "ffn.lin2";
  n.output_norm = "output_layer_norm";
  n.transform = "vocab_transform";
  n.transform_norm = "vocab_layer_norm";
  n.decoder = "vocab_projector";
  n.tied_bias = "vocab_projector.bias";
  n.text_dense = "pre_classifier";
  n.text_output = "classifier";
  return n;
}

}  // namespace

const BertNames& names_of(BertType type) {
  static const std::map<BertType, BertNames> all = {
      {BertType::bert, bert_like("bert.", "Bert")},
      {BertType::roberta, roberta_like("roberta.", "Roberta")},
      {BertType::xlm_roberta, roberta_like("roberta.", "XLMRoberta")},
      {BertType::distilbert, distilbert_names()},
      {BertType::mpnet, mpnet_names()}};
  return all.at(type);
}

}  // namespace brrr::models
