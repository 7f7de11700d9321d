#pragma once
// The graphs of the Llama family (Touvron et al. 2023): pre-norm blocks with RMSNorm, rotary
// positions, grouped-query attention and SwiGLU. Parameters carry Hugging Face's names.

#include <memory>
#include <optional>

#include "models/causal_lm.h"
#include "models/llama/llama_config.h"

namespace brrr::models {

/// Declares the parameters in `g`; the config outlives the net. `rng_key` as in CausalModel::build.
std::unique_ptr<CausalNet> llama_net(Graph& g, const LlamaConfig& config,
                                     std::optional<Value> rng_key);

}  // namespace brrr::models
