#pragma once
// GPT-2 (Radford et al. 2019) and its variants: pre-norm blocks, learned positions, tanh GELU, the
// head usually tied to the token embedding. Parameters carry Hugging Face's names. Attention is
// written as the formula says; passes and kernels make it fast.

#include <memory>
#include <optional>

#include "models/causal_lm.h"
#include "models/gpt2/gpt2_config.h"

namespace brrr::models {

/// Declares the parameters in `g`; the config outlives the net. `rng_key` as in CausalModel::build.
std::unique_ptr<CausalNet> gpt2_net(Graph& g, const Gpt2Config& config,
                                    std::optional<Value> rng_key);

/// The graphs that Model (models/model.h) describes.
Graph gpt2_loss_graph(const Gpt2Config& config, int64_t batch, int64_t length);
Graph gpt2_logits_graph(const Gpt2Config& config, Dim batch, Dim length);
Graph gpt2_decode_graph(const Gpt2Config& config, const DecodeBinding& binding);

}  // namespace brrr::models
