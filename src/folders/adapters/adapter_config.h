#pragma once
// adapter_config.json, as PEFT writes it for LoRA.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "models/adapters/adapted_model.h"

namespace brrr::io {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";
/// What PEFT wrote before it wrote safetensors, and writes with safe_serialization=False.
inline constexpr const char* kAdapterPickle = "adapter_model.bin";
/// Configuration of the adapted model, which PEFT's files lack. The name is not config.json,
/// because transformers loads a folder that holds that file as a complete model.
inline constexpr const char* kModelConfig = "model_config.json";

/// A number for all modules, and others for those whose names a pattern matches.
struct NumberByModule {
  double number = 0;
  std::vector<std::pair<std::string, double>> patterns;  // as PEFT's rank_pattern
  double of(const std::string& module) const;
};

struct AdapterConfig {
  std::string base;  // base_model_name_or_path
  NumberByModule rank, alpha;
  double dropout = 0;
  bool rslora = false, dora = false;
  std::string task_type;  // "CAUSAL_LM", "SEQ_CLS", ...; "": none
};

/// Reads it. Throws UserError for what is no LoRA adapter, and for variants that compute something
/// else than x W + s (x Aᵀ) Bᵀ and its DoRA.
AdapterConfig read_adapter_config(const fs::path& folder);

/// The text for an adapter of a model, which PEFT reads. `base` is base_model_name_or_path.
std::string adapter_config_text(const models::Model& base_model, const models::Adapter& adapter,
                                const std::string& base);

}  // namespace brrr::io
