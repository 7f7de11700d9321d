#pragma once
// The sizes and constants of a model of the Llama family: llama, mistral, qwen2 and qwen3 differ in
// a few of these fields.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/causal_lm.h"
#include "models/config_table.h"
#include "models/rope.h"

namespace brrr::models {

enum class LlamaType { llama, mistral, qwen2, qwen3 };

struct LlamaConfig {
  LlamaType type = LlamaType::llama;
  int64_t vocab_size = 32000;              // V
  int64_t max_position_embeddings = 2048;  // longest context, T
  int64_t hidden_size = 4096;              // width, C
  int64_t num_hidden_layers = 32;          // L
  int64_t num_attention_heads = 32;        // H, of queries
  int64_t num_key_value_heads = 32;        // K, which divides H
  int64_t head_dim = 128;                  // D, even
  int64_t intermediate_size = 11008;       // M
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  double attention_dropout = 0;
  bool tie_word_embeddings = false;
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false;        // RMSNorm over each head of q and k, before they are rotated
  int64_t sliding_window = 0;  // keys that a query of a sliding layer sees, itself included; 0: all
  std::vector<bool> slides;    // [L], empty: every layer does (where there is a window)
  RopeConfig rope;
  /// Ids outside [0, vocab_size) mean "none". Several tokens may end a text.
  int64_t bos_token_id = -1;
  std::vector<int64_t> eos_token_ids;
  /// Keys of a config.json that Brrr does not know, as a JSON object: they are kept. "": none.
  std::string unknown_keys;

  int64_t window_of(int64_t layer) const {
    return slides.empty() || slides[static_cast<size_t>(layer)] ? sliding_window : 0;
  }
  TextEnds text_ends() const { return text_ends_within(vocab_size, bos_token_id, eos_token_ids); }
  /// Throws UserError naming the field, what is allowed and what it holds. Within the limits the
  /// number of elements cannot overflow.
  void validate() const;
  ConfigLimits limits() const;
  static const ConfigTable<LlamaConfig>& table();
  ModelSizes sizes() const;
  FileNames file_names() const;
  /// Declares the parameters, as CausalModel::build; this configuration outlives the net.
  std::unique_ptr<CausalNet> net(Parameters& p, std::optional<Value> rng_key,
                                 CausalHead head) const;
  static const Architecture& architecture();
  ModelPtr model() const;
  /// The text of a config.json with every key that transformers needs.
  std::string json(DType stored = DType::f32) const;
  bool operator==(const LlamaConfig&) const = default;
};

/// Reads the text of a config.json; `what` names it in errors. A feature that is not supported is
/// refused by name and value. Throws UserError.
LlamaConfig parse_llama_config(std::string_view text, const std::string& what);

}  // namespace brrr::models
