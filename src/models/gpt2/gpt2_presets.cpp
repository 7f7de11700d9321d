#include "models/model.h"

namespace brrr::models {
namespace {

// GPT-2's sizes (Radford et al., 2019, table 2, with the published weights' names). Learning rates
// are those of GPT-3 (Brown et al., 2020, table 2.1) for its model nearest in size: 125M 6e-4, 350M
// 3e-4, 760M 2.5e-4, 1.3B 2e-4. The rest follows nanoGPT's GPT-2 configuration; the number of steps
// is for a machine without a GPU, and warm-up and decay follow it.
Preset preset_of(std::string name, std::string summary, std::string layers, std::string heads,
                 std::string width, std::string rate) {
  return {std::move(name),
          std::move(summary),
          {{"tokenizer", "gpt2"},
           {"vocab-size", "50257"},
           {"n-layer", std::move(layers)},
           {"n-head", std::move(heads)},
           {"n-embd", std::move(width)},
           {"context", "1024"},
           {"dropout", "0"},
           {"bias", "true"},
           {"max-steps", "1000"},
           {"batch-size", "4"},
           {"learning-rate", std::move(rate)},
           {"warmup-steps", "0.03"},
           {"weight-decay", "0.1"},
           {"adam-beta2", "0.95"},
           {"eval-steps", "100"},
           {"eval-batches", "20"}}};
}

}  // namespace

std::vector<Preset> gpt2_presets() {
  return {
      // nanoGPT's README, "I only have a macbook": the defaults of TrainOptions, repeated so that
      // the preset does not hang on them.
      {"char-cpu",
       "characters, 0.8M parameters, 2,000 steps: under a minute on 2 cores",
       {{"tokenizer", "char"},
        {"n-layer", "4"},
        {"n-head", "4"},
        {"n-embd", "128"},
        {"context", "64"},
        {"dropout", "0"},
        {"bias", "false"},
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
      // nanoGPT's config/train_shakespeare_char.py.
      {"char",
       "characters, 10.7M parameters, 5,000 steps",
       {{"tokenizer", "char"},
        {"n-layer", "6"},
        {"n-head", "6"},
        {"n-embd", "384"},
        {"context", "256"},
        {"dropout", "0.2"},
        {"bias", "false"},
        {"max-steps", "5000"},
        {"batch-size", "64"},
        {"learning-rate", "1e-3"},
        {"warmup-steps", "100"},
        {"weight-decay", "0.1"},
        {"adam-beta2", "0.99"},
        {"max-grad-norm", "1.0"},
        {"eval-steps", "250"},
        {"eval-batches", "200"},
        {"logging-steps", "10"}}},
      preset_of("gpt2", "GPT-2, 124M parameters", "12", "12", "768", "6e-4"),
      preset_of("gpt2-medium", "GPT-2, 350M parameters", "24", "16", "1024", "3e-4"),
      preset_of("gpt2-large", "GPT-2, 774M parameters", "36", "20", "1280", "2.5e-4"),
      preset_of("gpt2-xl", "GPT-2, 1.5B parameters", "48", "25", "1600", "2e-4"),
      // The defaults of transformers' Trainer and of its example run_clm.py, which takes blocks of
      // as many tokens as the model knows, but 1,024 at most; a warm-up as for fine-tuning BERT.
      {"fine-tune-text",
       "fine-tune a language model on your text: with --init-from",
       {{"max-steps", "0"},
        {"num-train-epochs", "3"},
        {"context", "1024"},
        {"batch-size", "8"},
        {"learning-rate", "5e-5"},
        {"lr-scheduler-type", "linear"},
        {"warmup-steps", "0.1"},
        {"weight-decay", "0.01"},
        {"adam-beta2", "0.999"},
        {"max-grad-norm", "1.0"},
        {"eval-steps", "50"},
        {"eval-batches", "20"}}},
  };
}

}  // namespace brrr::models
