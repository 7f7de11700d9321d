#pragma once
// The sizes and constants of a GPT-2, with the names of Hugging Face's config.json; the defaults
// are GPT-2 124M.

#include <cstdint>
#include <string>
#include <string_view>

#include "models/activation.h"
#include "models/causal_lm.h"
#include "models/config_table.h"

namespace brrr::models {

struct Gpt2Config {
  int64_t vocab_size = 50257;  // V
  int64_t n_positions = 1024;  // longest context, T
  int64_t n_embd = 768;        // width, C
  int64_t n_layer = 12;        // L
  int64_t n_head = 12;         // H
  int64_t n_inner = 0;         // width of the MLP; 0: 4 C
  double resid_pdrop = 0.1;
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  Activation activation = Activation::gelu_new;
  bool scale_attn_weights = true;                // scores / sqrt(D)
  bool scale_attn_by_inverse_layer_idx = false;  // scores / (layer + 1)
  /// Asks for scores and softmax in f32, as Brrr computes them anyway: kept for other readers.
  bool reorder_and_upcast_attn = false;
  bool tie_word_embeddings = true;
  bool bias = true;  // false: no bias in Linear and LayerNorm (nanoGPT's option)
  // Ids outside [0, vocab_size) mean "none": small vocabularies keep the default without harm.
  int64_t bos_token_id = 50256;
  int64_t eos_token_id = 50256;
  /// Keys of a config.json that Brrr does not know, as a JSON object: they are kept. "": none.
  std::string unknown_keys;

  int64_t head_width() const { return n_embd / n_head; }
  int64_t mlp_width() const { return n_inner > 0 ? n_inner : 4 * n_embd; }
  TextEnds text_ends() const { return text_ends_within(vocab_size, bos_token_id, {eos_token_id}); }

  /// Throws UserError naming the field, what is allowed and what it holds. Within the limits the
  /// number of elements cannot overflow.
  void validate() const;
  ConfigLimits limits() const { return ConfigLimits("gpt2"); }
  static const ConfigTable<Gpt2Config>& table();
  ModelSizes sizes() const;
  FileNames file_names() const;
  /// Declares the parameters, as CausalModel::build; this configuration outlives the net.
  std::unique_ptr<CausalNet> net(Parameters& p, std::optional<Value> rng_key,
                                 CausalHead head) const;
  static const Architecture& architecture();
  ModelPtr model() const;
  /// The text of a config.json with every key that transformers needs.
  std::string json(DType stored = DType::f32) const;
  bool operator==(const Gpt2Config&) const = default;
};

/// Reads the text of a config.json; `what` names it in errors. Throws UserError.
Gpt2Config parse_gpt2_config(std::string_view text, const std::string& what);

}  // namespace brrr::models
