// Starting points of GPT-NeoX.

#include "models/model.h"

namespace brrr::models {
namespace {

// Sizes and learning rates of Pythia (Biderman et al. 2023, table 1); the vocabulary is padded as
// Pythia pads it. The number of steps is for a machine without a GPU.
Preset pythia(std::string name, std::string summary, std::string layers, std::string heads,
              std::string width, std::string rate) {
  return {std::move(name),
          std::move(summary),
          {{"tokenizer", "gpt2"},
           {"vocab-size", "50304"},
           {"n-layer", std::move(layers)},
           {"n-head", std::move(heads)},
           {"n-embd", std::move(width)},
           {"tie-word-embeddings", "false"},
           {"context", "1024"},
           {"dropout", "0"},
           {"max-steps", "1000"},
           {"batch-size", "4"},
           {"learning-rate", std::move(rate)},
           {"warmup-steps", "0.01"},
           {"weight-decay", "0.01"},
           {"adam-beta2", "0.95"},
           {"eval-steps", "100"},
           {"eval-batches", "20"}}};
}

}  // namespace

std::vector<Preset> gpt_neox_presets() {
  return {
      // The size and the schedule of char-cpu.
      {"neox-char",
       "characters, 0.8M parameters, 2,000 steps: a GPT-NeoX of char-cpu's size",
       {{"tokenizer", "char"},
        {"n-layer", "4"},
        {"n-head", "4"},
        {"n-embd", "128"},
        {"tie-word-embeddings", "true"},
        {"context", "64"},
        {"dropout", "0"},
        {"max-steps", "2000"},
        {"batch-size", "12"},
        {"learning-rate", "1e-3"},
        {"warmup-steps", "100"},
        {"weight-decay", "0.1"},
        {"adam-beta2", "0.99"},
        {"max-grad-norm", "1.0"},
        {"eval-steps", "250"},
        {"eval-batches", "20"},
        {"logging-steps", "1"}}},
      pythia("pythia-70m", "the shape of Pythia 70M", "6", "8", "512", "1e-3"),
      pythia("pythia-160m", "the shape of Pythia 160M", "12", "12", "768", "6e-4"),
  };
}

}  // namespace brrr::models
