#pragma once
// The sizes and constants of a GPT-NeoX, with the names of Hugging Face's config.json; the defaults
// are GPT-NeoX-20B.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/activation.h"
#include "models/causal_lm.h"
#include "models/config_table.h"
#include "models/rope.h"

namespace brrr::models {

struct GptNeoxConfig {
  int64_t vocab_size = 50432;              // V
  int64_t max_position_embeddings = 2048;  // longest context, T
  int64_t hidden_size = 6144;              // width, C
  int64_t num_hidden_layers = 44;          // L
  int64_t num_attention_heads = 64;        // H, which divides C
  int64_t intermediate_size = 24576;       // M
  double layer_norm_eps = 1e-5;
  double initializer_range = 0.02;
  double attention_dropout = 0;
  double hidden_dropout = 0;  // of the embedding and of what attention and MLP add
  Activation hidden_act = Activation::gelu;
  bool use_parallel_residual = true;  // the MLP reads what attention reads, not what it gives
  bool attention_bias = true;         // the MLP and the norms have biases in any case
  bool tie_word_embeddings = false;
  RopeConfig rope{.partial_rotary_factor = 0.25};
  /// Ids outside [0, vocab_size) mean "none". Several tokens may end a text.
  int64_t bos_token_id = -1;
  std::vector<int64_t> eos_token_ids;
  /// Keys of a config.json that Brrr does not know, as a JSON object: they are kept. "": none.
  std::string unknown_keys;

  int64_t head_width() const { return hidden_size / num_attention_heads; }  // D
  /// The columns of a head that turn: its first ones.
  int64_t rotated_width() const {
    return static_cast<int64_t>(static_cast<double>(head_width()) * rope.partial_rotary_factor);
  }
  TextEnds text_ends() const { return text_ends_within(vocab_size, bos_token_id, eos_token_ids); }
  /// Throws UserError naming the field, what is allowed and what it holds. Within the limits the
  /// number of elements cannot overflow.
  void validate() const;
  ConfigLimits limits() const { return ConfigLimits("gpt_neox"); }
  static const ConfigTable<GptNeoxConfig>& table();
  ModelSizes sizes() const;
  FileNames file_names() const;
  /// Declares the parameters, as CausalModel::build; this configuration outlives the net.
  std::unique_ptr<CausalNet> net(Parameters& p, std::optional<Value> rng_key,
                                 CausalHead head) const;
  static const Architecture& architecture();
  ModelPtr model() const;
  /// The text of a config.json with every key that transformers needs.
  std::string json(DType stored = DType::f32) const;
  bool operator==(const GptNeoxConfig&) const = default;
};

/// Reads the text of a config.json; `what` names it in errors. Throws UserError.
GptNeoxConfig parse_gpt_neox_config(std::string_view text, const std::string& what);

}  // namespace brrr::models
