// Starting points of the Llama family.

#include "models/model.h"

namespace brrr::models {

std::vector<Preset> llama_presets() {
  return {
      // The size and the schedule of char-cpu: two heads of keys for four of queries leave room for
      // the third matrix of SwiGLU.
      {"llama-char",
       "characters, 0.8M parameters, 2,000 steps: a Llama of char-cpu's size",
       {{"tokenizer", "char"},
        {"n-layer", "4"},
        {"n-head", "4"},
        {"num-key-value-heads", "2"},
        {"n-embd", "128"},
        {"intermediate-size", "384"},
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
      // The sizes of SmolLM2-135M (Allal et al. 2025, table 4) and of Llama 3.2 1B (its model
      // card), trained at a context that a machine without a GPU has time for.
      {"smollm-135m",
       "the shape of SmolLM 135M",
       {{"tokenizer", "gpt2"},
        {"vocab-size", "49152"},
        {"n-layer", "30"},
        {"n-head", "9"},
        {"num-key-value-heads", "3"},
        {"n-embd", "576"},
        {"intermediate-size", "1536"},
        {"tie-word-embeddings", "true"},
        {"rms-norm-eps", "1e-5"},
        {"rope-theta", "100000"},
        {"context", "1024"},
        {"dropout", "0"},
        {"max-steps", "1000"},
        {"batch-size", "4"},
        {"learning-rate", "6e-4"},
        {"warmup-steps", "0.03"},
        {"weight-decay", "0.1"},
        {"adam-beta2", "0.95"},
        {"eval-steps", "100"},
        {"eval-batches", "20"}}},
      {"llama-1b",
       "the shape of Llama 3.2 1B",
       {{"tokenizer", "gpt2"},
        {"vocab-size", "128256"},
        {"n-layer", "16"},
        {"n-head", "32"},
        {"num-key-value-heads", "8"},
        {"n-embd", "2048"},
        {"intermediate-size", "8192"},
        {"tie-word-embeddings", "true"},
        {"rms-norm-eps", "1e-5"},
        {"rope-theta", "500000"},
        {"context", "1024"},
        {"dropout", "0"},
        {"max-steps", "1000"},
        {"batch-size", "1"},
        {"learning-rate", "3e-4"},
        {"warmup-steps", "0.03"},
        {"weight-decay", "0.1"},
        {"adam-beta2", "0.95"},
        {"eval-steps", "100"},
        {"eval-batches", "20"}}},
  };
}

}  // namespace brrr::models
