// The architecture "bert" (bert, roberta, xlm-roberta, distilbert, mpnet): its models, the tensor
// names of its files, and its presets.

#include "models/bert/bert_config.h"
#include "models/configured_model.h"

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

class BertModel final : public ConfiguredEncoder<BertConfig> {
 public:
  using ConfiguredEncoder::ConfiguredEncoder;

  bool has_token_types() const override { return c_.type_vocab_size > 1; }
  /// False for MPNet: the gradient of its bias by distance is computed from all scores of a batch,
  /// which are [H, N, N] where texts lie one behind the other.
  bool has_flat_loss() const override { return c_.type != BertType::mpnet; }

 protected:
  std::unique_ptr<EncoderNet> build(Parameters& p, std::optional<Value> rng_key) const override {
    p.set_deviation(c_.initializer_range);
    return bert_net(p, c_, rng_key);
  }
};

void complete_bert(BertConfig& c, const Description& d) {
  check_heads_divide(c.hidden_size, c.num_attention_heads);
  if (c.intermediate_size == 0) c.intermediate_size = 4 * c.hidden_size;
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
}

std::vector<Preset> bert_presets() {
  return {
      // The sizes of BERT mini (Turc et al. 2019); the rates of ELECTRA small and of Izsak et al.
      // 2021, "How to train BERT with an academic budget", for small batches.
      {"bert-mini", "an encoder, 4 layers of width 256, that learns to fill masks",
       preset_values("--tokenizer wordpiece:4000 --n-layer 4 --n-head 4 --n-embd 256 --context 64 "
                     "--dropout 0.1 --max-steps 1000 --batch-size 32 --learning-rate 1e-3 "
                     "--lr-scheduler-type linear --warmup-steps 0.06 --weight-decay 0.01 "
                     "--adam-beta2 0.98 --eval-steps 250 --eval-batches 20")},
      // BERT's own recipe (Devlin et al. 2018, appendix A.3), and transformers' defaults where it
      // leaves a choice.
      {"fine-tune", "an encoder for classes, ratings or tags: with --task, --data and --init-from",
       preset_values("--max-steps 0 --num-train-epochs 3 --context 128 --batch-size 32 "
                     "--learning-rate 5e-5 --lr-scheduler-type linear --warmup-steps 0.1 "
                     "--weight-decay 0.01 --adam-beta2 0.999 --sampling group_by_length "
                     "--eval-steps 200 --eval-batches 0 --load-best-model-at-end true "
                     "--samples 0")},
  };
}

}  // namespace

const BertNames& names_of(BertType type) {
  // In the order of the enumeration.
  static const BertNames all[] = {bert_like("bert.", "Bert"), roberta_like("roberta.", "Roberta"),
                                  roberta_like("roberta.", "XLMRoberta"), distilbert_names(),
                                  mpnet_names()};
  return all[static_cast<size_t>(type)];
}

FileNames BertConfig::file_names() const {
  const BertNames& n = names_of(type);
  FileNames names;
  names.prefix = n.prefix;
  names.trunk = {"embeddings.", n.layers + "."};
  names.is_buffer = [](std::string_view name) { return name.ends_with(".position_ids"); };
  // Files that TensorFlow's checkpoints were turned into call a norm's parameters by other names.
  for (const ParameterInfo& p : model()->parameters()) {
    const size_t at = p.name.rfind("LayerNorm.");
    if (at == std::string::npos) continue;
    const std::string norm = p.name.substr(0, at) + "LayerNorm.";
    const std::string older = norm + (p.name.ends_with(".bias") ? "beta" : "gamma");
    names.renamed.emplace_back(older, p.name);
    if (older.starts_with(n.prefix))
      names.renamed.emplace_back(older.substr(n.prefix.size()), p.name);
  }
  if (task.head == Head::masked_token) {
    const std::string bias = n.bias_of_decoder(tie_word_embeddings);
    names.renamed.emplace_back(n.bias_of_decoder(!tie_word_embeddings), bias);
    if (tie_word_embeddings)
      names.tied = {n.decoder + ".weight", n.prefix + "embeddings.word_embeddings.weight"};
  }
  return names;
}

ModelPtr BertConfig::model() const { return std::make_shared<BertModel>(*this); }

const Architecture& BertConfig::architecture() {
  static const Architecture architecture = architecture_of<BertConfig>(
      {.name = "bert",
       .title = "BERT",
       .model_types = {"bert", "roberta", "xlm-roberta", "distilbert", "mpnet"},
       .class_names = {"Bert", "Roberta", "XLMRoberta", "DistilBert", "MPNet"},
       .presets = bert_presets(),
       .head = Head::masked_token},
      complete_bert, parse_bert_config);
  return architecture;
}

}  // namespace brrr::models
