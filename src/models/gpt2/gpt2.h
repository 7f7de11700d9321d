#pragma once
// GPT-2 (Radford et al. 2019): pre-norm blocks, learned positions, tanh GELU, the head tied to the
// token embedding. Parameters carry Hugging Face's names. Attention is written as the formula says;
// making it fast is a matter of passes and kernels.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/gpt2/gpt2_config.h"
#include "models/layers.h"
#include "models/model.h"

namespace brrr::models {

class Gpt2 {
 public:
  /// Declares the parameters in `g`. `rng_key`: i32[2] (seed, step), without it there is no
  /// dropout.
  Gpt2(Graph& g, const Gpt2Config& config, std::optional<Value> rng_key = std::nullopt);
  ~Gpt2();
  Gpt2(const Gpt2&) = delete;
  Gpt2& operator=(const Gpt2&) = delete;

  /// tokens: [B, T] i32, T <= n_positions. Returns logits [B, T, V].
  Value operator()(Value tokens) const;

  /// Inference with a KV cache. tokens: [B, T] i32 at positions position .. position + T - 1;
  /// position: [] i32. Declares the states "cache.k.<layer>" and "cache.v.<layer>" [B, H, capacity,
  /// D] and their updates. Returns the logits of the last token, [B, V].
  Value next_token_logits(Value tokens, Value position, const DecodeBinding& binding) const;

 private:
  struct Block;
  Value embed(Value tokens, Value positions) const;
  Value head(Value x) const;

  Graph& g_;
  Gpt2Config config_;
  std::optional<Value> rng_key_;
  std::optional<Value> wte_, wpe_, lm_head_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<LayerNorm> ln_f_;
};

/// The graphs that Model (models/model.h) describes.
Graph gpt2_loss_graph(const Gpt2Config& config, int64_t batch, int64_t length);
Graph gpt2_logits_graph(const Gpt2Config& config, Dim batch, Dim length);
Graph gpt2_decode_graph(const Gpt2Config& config, const DecodeBinding& binding);

}  // namespace brrr::models
