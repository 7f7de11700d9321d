#pragma once
// The graphs of GPT-NeoX (Black et al. 2022): LayerNorm, rotary positions on the first columns of a
// head, attention and MLP side by side. Parameters carry Hugging Face's names.

#include "models/gpt_neox/gpt_neox_config.h"
#include "models/model.h"

namespace brrr::models {

/// The graphs that Model (models/model.h) describes.
Graph gpt_neox_loss_graph(const GptNeoxConfig& config, int64_t batch, int64_t length);
Graph gpt_neox_logits_graph(const GptNeoxConfig& config, Dim batch, Dim length);
Graph gpt_neox_decode_graph(const GptNeoxConfig& config, const DecodeBinding& binding);

}  // namespace brrr::models
