#pragma once
// The sizes and constants of a GPT-2, with the names of Hugging Face's config.json. A plain value;
// the defaults are GPT-2 124M. validate() is called wherever a configuration enters from outside.

#include <cstdint>
#include <optional>
#include <string>

#include "models/activation.h"
#include "models/config_limits.h"

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

  /// Throws UserError naming the field, what is allowed and what it holds. Within the limits
  /// the number of elements cannot overflow.
  void validate() const {
    const ConfigLimits limits("gpt2");
    limits.size("vocab_size", vocab_size, int64_t{1} << 24);
    limits.size("n_positions", n_positions, int64_t{1} << 24);
    limits.size("n_embd", n_embd, int64_t{1} << 18);
    limits.size("n_layer", n_layer, 4096);
    limits.size("n_head", n_head, n_embd);
    limits.size("n_inner", mlp_width(), int64_t{1} << 20);
    if (n_embd % n_head != 0)
      user_error("[gpt2 config] n_embd must be divisible by n_head; got n_embd {} and n_head {}",
                 n_embd, n_head);
    limits.probability("resid_pdrop", resid_pdrop);
    limits.probability("embd_pdrop", embd_pdrop);
    limits.probability("attn_pdrop", attn_pdrop);
    limits.epsilon("layer_norm_epsilon", layer_norm_epsilon);
    limits.deviation("initializer_range", initializer_range);
  }

  bool operator==(const Gpt2Config&) const = default;
};

}  // namespace brrr::models
