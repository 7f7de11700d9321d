#pragma once
// The graphs of GPT-NeoX (Black et al. 2022): LayerNorm, rotary positions on the first columns of a
// head, attention and MLP side by side. Parameters carry Hugging Face's names.

#include <memory>
#include <optional>

#include "models/causal_lm.h"
#include "models/gpt_neox/gpt_neox_config.h"

namespace brrr::models {

/// Declares the parameters in `g`; the config outlives the net. `rng_key` as in CausalModel::build.
std::unique_ptr<CausalNet> gpt_neox_net(Graph& g, const GptNeoxConfig& config,
                                        std::optional<Value> rng_key);

}  // namespace brrr::models
