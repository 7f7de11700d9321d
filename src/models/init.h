#pragma once
// Initial weights of GPT-2: normal with standard deviation 0.02, the projections into the residual
// stream scaled by 1 / sqrt(2 L), norms 1, biases 0. A weight is a function of (seed, its name, its
// index): the order of parameters and the number of threads do not matter.

#include <span>
#include <string_view>

#include "models/gpt2/gpt2_config.h"

namespace brrr::models {

void initialise(std::string_view name, const Gpt2Config& config, uint32_t seed,
                std::span<float> out);

}  // namespace brrr::models
