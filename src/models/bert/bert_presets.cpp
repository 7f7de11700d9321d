#include "models/model.h"

namespace brrr::models {

std::vector<Preset> bert_presets() {
  return {
      // The sizes of BERT mini (Turc et al. 2019); the rates of ELECTRA small and of Izsak et al.
      // 2021, "How to train BERT with an academic budget", for small batches.
      {"bert-mini",
       "an encoder, 4 layers of width 256, that learns to fill masks",
       {{"tokenizer", "wordpiece:4000"},
        {"n-layer", "4"},
        {"n-head", "4"},
        {"n-embd", "256"},
        {"context", "64"},
        {"dropout", "0.1"},
        {"max-steps", "1000"},
        {"batch-size", "32"},
        {"learning-rate", "1e-3"},
        {"lr-scheduler-type", "linear"},
        {"warmup-steps", "0.06"},
        {"weight-decay", "0.01"},
        {"adam-beta2", "0.98"},
        {"eval-steps", "250"},
        {"eval-batches", "20"}}},
      // BERT's own recipe (Devlin et al. 2018, appendix A.3), and transformers' defaults where it
      // leaves a choice.
      {"fine-tune",
       "an encoder for classes, ratings or tags: with --task, --data and --init-from",
       {{"max-steps", "0"},
        {"num-train-epochs", "3"},
        {"context", "128"},
        {"batch-size", "32"},
        {"learning-rate", "5e-5"},
        {"lr-scheduler-type", "linear"},
        {"warmup-steps", "0.1"},
        {"weight-decay", "0.01"},
        {"adam-beta2", "0.999"},
        {"sampling", "group_by_length"},
        {"eval-steps", "200"},
        {"eval-batches", "0"},
        {"load-best-model-at-end", "true"},
        {"samples", "0"}}},
  };
}

}  // namespace brrr::models
