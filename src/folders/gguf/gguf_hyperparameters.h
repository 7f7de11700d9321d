#pragma once
// Translates a model to what the metadata of a GGUF file says of it: the architecture and its sizes
// and constants, the reverse of gguf_config().

#include <string>
#include <vector>

#include "folders/gguf/gguf_names.h"
#include "formats/gguf/gguf_output.h"
#include "models/model.h"

namespace brrr::io {

struct GgufHyperparameters {
  const GgufArchitecture* architecture = nullptr;
  GgufMetadata keys;  // "llama.block_count" and the like
  int64_t heads = 0, kv_heads = 0;
  /// Factors of frequencies (rope_freqs.weight); empty: none.
  std::vector<float> rope_factors;
  std::vector<std::string> notes;  // what llama.cpp does otherwise, one line each
};

/// Throws UserError, which names it, for an architecture, a task or a setting that GGUF files
/// cannot express; `where` names the model.
GgufHyperparameters gguf_hyperparameters(const models::Model& model, const std::string& where);

}  // namespace brrr::io
