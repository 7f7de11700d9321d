#pragma once
// GPT-2 behind the seam: its configuration, parameters and graphs as a Model, and config.json both
// ways. Weights of Linear layers are Hugging Face's Conv1D weights: [in, out].

#include <string>
#include <string_view>

#include "models/gpt2/gpt2_config.h"
#include "models/model.h"

namespace brrr::models {

/// The architecture "gpt2", as all_models.cpp lists it.
const Architecture& gpt2();

/// Throws UserError where the configuration is out of range.
ModelPtr gpt2_model(const Gpt2Config& config);

Gpt2Config parse_gpt2_config(std::string_view text, const std::string& what);
std::string gpt2_config_json(const Gpt2Config& config, DType stored = DType::f32);

}  // namespace brrr::models
