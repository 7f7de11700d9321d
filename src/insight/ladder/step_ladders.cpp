// The ladders that are made of training steps, as tables of options.

#include "insight/ladder/ladder.h"

namespace brrr::insight {
namespace {

KeyValues joined(std::initializer_list<KeyValues> lists) {
  KeyValues all;
  for (const KeyValues& l : lists) all.insert(all.end(), l.begin(), l.end());
  return all;
}

const KeyValues kQuickModel{
    {"n-layer", "2"}, {"n-embd", "128"}, {"n-head", "2"}, {"context", "64"}};

/// Accumulation, checkpointing, precision, optimizers and their combinations.
Ladder memory_ladder(const char* name, const char* preset) {
  const KeyValues accumulate{{"batch-size", "1"}, {"gradient-accumulation-steps", "4"}};
  const KeyValues checkpoint{{"rematerialize", "blocks"}};
  const KeyValues bf16{{"precision", "bf16"}};
  Ladder l;
  l.name = name;
  l.title = fmt::format("{}, batch 4 x 512: memory against speed", preset);
  l.published = "BERT-large, batch 4 x 512, one GPU (Hugging Face, efficient training)";
  l.quick = {{"n-layer", "8"}, {"n-embd", "128"}, {"n-head", "2"}, {"context", "64"}};
  l.options = {{"preset", preset},
               {"context", "512"},
               {"batch-size", "4"},
               {"gradient-accumulation-steps", "1"}};
  l.rungs = {
      {"plain", {}, 1.0, 1.0},
      {"accumulation 4 x 1", accumulate, 7.75 / 8.86, 8681.0 / 14949},
      {"checkpointing (blocks)", checkpoint, 5.99 / 8.86, 6775.0 / 14949},
      {"auto, 25% of the activations", {{"activation-memory", "25%"}}},
      {"bf16", bf16, 18.64 / 8.86, 13939.0 / 14949},
      {"adamw_8bit", {{"optim", "adamw_8bit"}}},
      {"sgd with momentum", {{"optim", "sgd"}}},
      {"lion", {{"optim", "lion"}}},
      {"adafactor", {{"optim", "adafactor"}}},
      {"muon", {{"optim", "muon"}}},
      {"accumulation, checkpointing", joined({accumulate, checkpoint})},
      {"accumulation, checkpointing, bf16", joined({accumulate, checkpoint, bf16})},
      {"the same with adamw_8bit",
       joined({accumulate, checkpoint, bf16, {{"optim", "adamw_8bit"}}})},
  };
  return l;
}

/// From node by node in fp32 to everything that the compiler does.
Ladder compile_ladder() {
  const auto without = [](std::initializer_list<const char*> passes) {
    KeyValues all;
    for (const char* pass : passes) all.emplace_back("disable-pass", pass);
    return all;
  };
  const KeyValues bf16{{"precision", "bf16"}};
  Ladder l;
  l.name = "gpt2";
  l.title = "gpt2, batch 4 x 512: each rung keeps those before it";
  l.published = "GPT-2 124M, batch 16 x 1024 on an A100, PyTorch (Karpathy, build-nanogpt)";
  l.quick = kQuickModel;
  l.cumulative = true;
  l.options = {{"preset", "gpt2"},
               {"context", "512"},
               {"batch-size", "4"},
               {"gradient-accumulation-steps", "1"},
               {"fused-optimizer", "false"}};
  const KeyValues padded{{"vocab-size", "50304"}}, fused{{"fused-optimizer", "true"}};
  l.rungs = {
      {"fp32, node by node", {{"compile", "false"}}, 1.0},
      {"matmul precision medium",
       {{"compile", "false"}, {"float32-matmul-precision", "medium"}},
       1000.0 / 333},
      {"bf16", joined({{{"compile", "false"}}, bf16}), 1000.0 / 300},
      {"compiled", joined({bf16, without({"match_attention", "match_loss_head"})}), 1000.0 / 130},
      {"flash attention", joined({bf16, without({"match_loss_head"})}), 1000.0 / 96},
      {"loss head in chunks", bf16},
      {"padded vocabulary (50304)", joined({bf16, padded}), 1000.0 / 93},
      {"fused optimizer", joined({bf16, padded, fused}), 1000.0 / 90},
  };
  return l;
}

/// Powers of two, ugly sizes and their neighbours; speed is in sequences.
Ladder batch_ladder() {
  Ladder l;
  l.name = "batch";
  l.title = "char, context 256: batch sizes";
  l.quick = {{"n-layer", "2"}, {"context", "64"}};
  l.options = {{"preset", "char"}, {"vocab-size", "65"}, {"dropout", "0"}};
  for (const int n : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33})
    l.rungs.push_back({fmt::format("batch {}", n), {{"batch-size", std::to_string(n)}}});
  return l;
}

Ladder precision_ladder() {
  Ladder l;
  l.name = "precision";
  l.title = "gpt2, batch 4 x 256: number formats";
  l.published = "mixed precision on a V100 1.5x to 5.5x of fp32; fp16 on BERT-large 2.1x";
  l.quick = kQuickModel;
  l.options = {{"preset", "gpt2"},
               {"context", "256"},
               {"batch-size", "4"},
               {"gradient-accumulation-steps", "1"}};
  l.rungs = {{"fp32", {}},
             {"matmul precision high", {{"float32-matmul-precision", "high"}}},
             {"matmul precision medium", {{"float32-matmul-precision", "medium"}}},
             {"bf16", {{"precision", "bf16"}}},
             {"fp16", {{"precision", "fp16"}}},
             {"bf16, weights too", {{"precision", "bf16"}, {"param-dtype", "bf16"}}}};
  return l;
}

}  // namespace

const std::vector<Ladder>& step_ladders() {
  static const std::vector<Ladder> list = {compile_ladder(), memory_ladder("memory", "gpt2"),
                                           memory_ladder("memory-medium", "gpt2-medium"),
                                           batch_ladder(), precision_ladder()};
  return list;
}

}  // namespace brrr::insight
