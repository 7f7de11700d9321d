#pragma once
// The Llama family behind the seam: llama, mistral, qwen2 and qwen3 as one architecture. Weights of
// Linear layers are [out, in], as in Hugging Face's files.

#include "models/llama/llama_config.h"
#include "models/model.h"

namespace brrr::models {

/// The architecture "llama", as all_models.cpp lists it.
const Architecture& llama();

/// Throws UserError where the configuration is out of range.
ModelPtr llama_model(const LlamaConfig& config);

}  // namespace brrr::models
