#pragma once
// The graphs of the Llama family (Touvron et al. 2023): pre-norm blocks with RMSNorm, rotary
// positions, grouped-query attention and SwiGLU. Parameters carry Hugging Face's names.

#include <optional>
#include <string>
#include <vector>

#include "models/llama/llama_config.h"
#include "models/model.h"
#include "ops/ops.h"

namespace brrr::models {

/// The graphs that Model (models/model.h) describes.
Graph llama_loss_graph(const LlamaConfig& config, int64_t batch, int64_t length);
Graph llama_logits_graph(const LlamaConfig& config, Dim batch, Dim length);
Graph llama_decode_graph(const LlamaConfig& config, const DecodeBinding& binding);

}  // namespace brrr::models
