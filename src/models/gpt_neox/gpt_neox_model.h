#pragma once
// GPT-NeoX behind the seam. Weights of Linear layers are [out, in], as in Hugging Face's files; the
// rows of query_key_value are those of q, k and v of the first head, then of the second.

#include "models/gpt_neox/gpt_neox_config.h"
#include "models/model.h"

namespace brrr::models {

/// The architecture "gpt_neox", as all_models.cpp lists it.
const Architecture& gpt_neox();

/// Throws UserError where the configuration is out of range.
ModelPtr gpt_neox_model(const GptNeoxConfig& config);

}  // namespace brrr::models
