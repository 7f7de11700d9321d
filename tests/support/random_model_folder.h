#pragma once
// Model folders with random weights, and a Llama whose layers are large enough to be quantised.

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "folders/model_folder.h"
#include "models/initialise.h"
#include "models/llama/llama_config.h"

namespace brrr::test {

/// Two blocks of width 128 with 14 linear layers, a vocabulary of 96 and a context of 32.
inline models::ModelPtr llama_to_quantise() {
  models::LlamaConfig c;
  c.vocab_size = 96;
  c.max_position_embeddings = 32;
  c.hidden_size = 128;
  c.num_hidden_layers = 2;
  c.num_attention_heads = c.num_key_value_heads = 2;
  c.head_dim = 64;
  c.intermediate_size = 160;
  return c.model();
}

/// Writes and opens a folder with random weights and without a tokenizer. `change` may alter the
/// values of each parameter.
inline io::ModelFolder random_model_folder(
    const fs::path& folder, const models::Model& model,
    const std::function<void(const models::ParameterInfo&, std::span<float>)>& change = {}) {
  std::map<std::string, std::vector<float>> rooms;
  std::vector<TensorView> views;
  const FloatWeights values = models::initial_weights(model, 5);
  for (const models::ParameterInfo& p : model.parameters()) {
    std::vector<float>& room = rooms[p.name];
    room.resize(static_cast<size_t>(p.shape.elements()));
    values(p.name, room);
    if (change) change(p, room);
    views.push_back({p.name, DType::f32, p.shape, std::as_bytes(std::span(room))});
  }
  create_folder(folder);
  io::write_model_files(folder, model, views);
  return io::open_model(folder, {.reads_tokenizer = false});
}

}  // namespace brrr::test
