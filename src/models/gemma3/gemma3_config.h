#pragma once
// The sizes and constants of a Gemma 3 for text, with the names of Hugging Face's config.json; the
// defaults are those of the class in transformers.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/causal_lm.h"
#include "models/config_table.h"
#include "models/rope.h"

namespace brrr::models {

struct Gemma3Config {
  int64_t vocab_size = 262208;               // V
  int64_t max_position_embeddings = 131072;  // longest context, T
  int64_t hidden_size = 2304;                // width, C
  int64_t num_hidden_layers = 26;            // L
  int64_t num_attention_heads = 8;           // H, of queries
  int64_t num_key_value_heads = 4;           // K, which divides H
  int64_t head_dim = 256;                    // D, even
  int64_t intermediate_size = 9216;          // M
  int64_t query_pre_attn_scalar = 256;       // scores are divided by its square root
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  double attention_dropout = 0;
  bool attention_bias = false;
  bool tie_word_embeddings = true;
  int64_t sliding_window = 4096;  // keys that a query of a sliding layer sees, itself included
  std::vector<bool> slides;       // [L]; empty: five layers of six, the sixth sees all
  RopeConfig rope{.theta = 1e6};  // of layers that see all
  RopeConfig local_rope;          // of layers that slide
  /// Ids outside [0, vocab_size) mean "none". Several tokens may end a text.
  int64_t bos_token_id = 2;
  std::vector<int64_t> eos_token_ids{1};
  /// Keys of a config.json that Brrr does not know, as a JSON object: they are kept. "": none.
  std::string unknown_keys;

  bool slides_in(int64_t layer) const {
    return slides.empty() ? (layer + 1) % 6 != 0 : slides[static_cast<size_t>(layer)];
  }
  TextEnds text_ends() const { return text_ends_within(vocab_size, bos_token_id, eos_token_ids); }
  /// Throws UserError naming the field, what is allowed and what it holds. Within the limits the
  /// number of elements cannot overflow.
  void validate() const;
  ConfigLimits limits() const { return ConfigLimits("gemma3"); }
  static const ConfigTable<Gemma3Config>& table();
  ModelSizes sizes() const;
  FileNames file_names() const;
  /// Declares the parameters, as CausalModel::build; this configuration outlives the net.
  std::unique_ptr<CausalNet> net(Parameters& p, std::optional<Value> rng_key,
                                 CausalHead head) const;
  static const Architecture& architecture();
  ModelPtr model() const;
  /// The text of a config.json that versions 4 and 5 of transformers read.
  std::string json(DType stored = DType::f32) const;
  bool operator==(const Gemma3Config&) const = default;
};

/// Reads the text of a config.json; `what` names it in errors. Throws UserError.
Gemma3Config parse_gemma3_config(std::string_view text, const std::string& what);

}  // namespace brrr::models
