#pragma once
// The sizes and constants of a ModernBERT (Warner et al. 2024), with the names of Hugging Face's
// config.json; the defaults are those of the class in transformers.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/activation.h"
#include "models/config_table.h"
#include "models/encoder.h"
#include "models/rope.h"

namespace brrr::models {

/// The pooling of the classification head.
enum class ClassifierPooling { cls, mean };

struct ModernBertConfig {
  int64_t vocab_size = 50368;              // V
  int64_t max_position_embeddings = 8192;  // longest text, T
  int64_t hidden_size = 768;               // width, C
  int64_t num_hidden_layers = 22;          // L
  int64_t num_attention_heads = 12;        // H, which divides C
  int64_t intermediate_size = 1152;        // M
  double norm_eps = 1e-5;
  double initializer_range = 0.02;
  double embedding_dropout = 0, attention_dropout = 0, mlp_dropout = 0, classifier_dropout = 0;
  bool attention_bias = false, mlp_bias = false, norm_bias = false;
  bool decoder_bias = true;      // of the head for masked tokens
  bool classifier_bias = false;  // of the dense layer of every head
  Activation hidden_activation = Activation::gelu;
  Activation classifier_activation = Activation::gelu;
  ClassifierPooling classifier_pooling = ClassifierPooling::cls;
  bool tie_word_embeddings = true;  // of the head for masked tokens
  /// Layers that slide see keys at most half of local_attention away; of global_attn_every_n_layers
  /// layers the first sees all.
  int64_t local_attention = 128;
  int64_t global_attn_every_n_layers = 3;
  std::vector<bool> slides;  // [L], where the layers follow no such pattern; else empty
  RopeConfig global_rope{.theta = 160000};
  RopeConfig local_rope{.theta = 10000};
  int64_t pad_token_id = 50283;
  int64_t bos_token_id = 50281, eos_token_id = 50282;  // outside [0, vocab_size): none
  Task task{.head = Head::masked_token};
  /// Keys of a config.json that Brrr does not know, as a JSON object: they are kept. "": none.
  std::string unknown_keys;

  bool slides_in(int64_t layer) const {
    return slides.empty() ? layer % global_attn_every_n_layers != 0
                          : slides[static_cast<size_t>(layer)];
  }
  ModelSizes sizes() const {
    return {.vocabulary = vocab_size,
            .context = max_position_embeddings,
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
  ConfigLimits limits() const { return ConfigLimits("modernbert"); }
  static const ConfigTable<ModernBertConfig>& table();
  static const Architecture& architecture();
  ModelPtr model() const;
  /// The text of a config.json that versions 4 and 5 of transformers read.
  std::string json(DType stored = DType::f32) const;
  bool operator==(const ModernBertConfig&) const = default;
};

/// Reads the text of a config.json; `what` names it in errors. Throws UserError.
ModernBertConfig parse_modernbert_config(std::string_view text, const std::string& what);

/// The graphs: norms in front of attention and MLP, rotary positions, GeGLU, and layers with a
/// window between those that see all of a text. The config outlives the net.
std::unique_ptr<EncoderNet> modernbert_net(Parameters& p, const ModernBertConfig& config,
                                           std::optional<Value> rng_key);

}  // namespace brrr::models
