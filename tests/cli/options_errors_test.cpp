// Wrong options: each is one clear line with exit code 2 that says what was expected and what came.
#include <gtest/gtest.h>

#include "base/options.h"
#include "support/temp_folder.h"
#include "train/options.h"

namespace brrr::train {
namespace {

std::string usage_message(const KeyValues& given) {
  try {
    resolve(given);
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), ExitCode::kUsage) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return e.what();
  }
  return "(no error)";
}

void expect_parts(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(message.find(part), std::string::npos)
        << "expected: " << part << "\ngot: " << message;
}

TEST(TrainOptionErrors, UnknownKeysSuggestTheNearest) {
  expect_parts(usage_message({{"--batch-sise", "3"}}),
               {"--batch-sise", "did you mean '--batch-size'"});
  expect_parts(usage_message({{"max_setps", "3"}}), {"max_setps", "did you mean 'max_steps'"});
  expect_parts(usage_message({{"learning_rte", "3"}}), {"did you mean 'learning_rate'"});
  expect_parts(usage_message({{"grad-clp", "3"}}), {"did you mean 'grad_clip'"});
  const std::string far = usage_message({{"--xyzzy-quux", "3"}});
  expect_parts(far, {"--xyzzy-quux", "--help"});
  EXPECT_EQ(far.find("did you mean"), std::string::npos) << far;
  const std::string hostile(100000, 'x');
  EXPECT_NE(usage_message({{hostile, "3"}}), "(no error)");
}

TEST(TrainOptionErrors, BadValuesSayWhatWasExpectedAndWhatCame) {
  const struct {
    const char *key, *value, *expected;
  } cases[] = {
      {"n_layer", "0", "whole number from 1"},
      {"n_layer", "two", "whole number from 1"},
      {"n_layer", "3.5", "whole number"},
      {"n_layer", "", "whole number"},
      {"n_layer", "4 ", "whole number"},
      {"n_layer", "99999999999999999999", "whole number"},
      {"dropout", "1", "below 1"},
      {"dropout", "-0.1", "of at least 0"},
      {"dropout", "nan", "expected a number"},
      {"learning_rate", "inf", "expected a number"},
      {"learning_rate", "1e-3x", "expected a number"},
      {"adam_beta2", "1", "below 1"},
      {"adam_epsilon", "0", "above 0"},
      {"val_fraction", "-0.1", "at least 0"},
      {"val_fraction", "1", "below 1"},
      {"bias", "maybe", "true or false"},
      {"compile", "2", "true or false"},
      {"seed", "-1", "whole number from 0 to 4294967295"},
      {"seed", "4294967296", "whole number"},
      {"preset", "gpt3", "char-cpu, char, gpt2"},
      {"lr_scheduler_type", "polynomial", "cosine, linear, constant, constant_with_warmup"},
      {"sampling", "sorted", "random, epoch, documents, group_by_length"},
      {"tokenize", "never", "auto, ahead, stream"},
      {"dataloader_num_workers", "-1", "whole number from 0 to 256"},
      {"dataloader_num_workers", "many", "whole number"},
      {"dataloader_prefetch_factor", "0", "whole number from 1"},
      {"dataloader_prefetch_factor", "99999999999", "whole number"},
      {"report_to", "wandb", "tensorboard, none"},
      {"live_port", "65536", "whole number from 0 to 65535"},
      {"live", "maybe", "true or false"},
      {"optim", "adam", "adamw, adamw_8bit, sgd, lion, adafactor, muon"},
      {"momentum", "1", "below 1"},
      {"muon_learning_rate", "-1", "of at least 0"},
      {"relative_step", "maybe", "true or false"},
      {"fused_optimizer", "maybe", "true or false"},
      {"param_dtype", "fp16", "fp32, bf16"},
      {"device", "gpu", "expected auto, cpu, cuda"},
      {"device", "cuda:sm_75", "cuda:sm_80"},
      {"precision", "fp4", "fp32, bf16, fp16, fp8"},
      {"dtype", "int8", "int8 is for a trained model that only runs: `plan` and `profile` take it"},
      {"precision", "w4a16", "quantise afterwards with `brrr quantize`"},
      {"bf16", "maybe", "true or false"},
      {"fp16", "2", "true or false"},
      {"float32_matmul_precision", "low", "highest, high, medium"},
      {"init_loss_scale", "0.5", "1"},
      {"auto_find_batch_size", "some", "true, false or all"},
      {"fit", "maybe", "true, false or all"},
      {"memory_limit", "6", "has no unit"},
      {"memory_limit", "0GiB", "above 0"},
      {"memory_limit", "-1GiB", "above 0"},
      {"memory_limit", "lots", "such as 6GiB"},
      {"memory_limit", "6 giga", "'giga' is not a unit"},
      {"memory_limit", "9e30GiB", "no machine has that much memory"},
      {"gradient_checkpointing", "often", "true or false"},
      {"rematerialize", "some", "none, all, blocks, auto"},
      {"activation_memory", "2", "has no unit"},
      {"activation_memory", "0GiB", "above 0"},
      {"activation_memory", "-1GiB", "above 0"},
      {"activation_memory", "lots", "amount of memory"},
      {"group_by_length", "maybe", "true or false"},
      {"wandb_log", "true", "log.jsonl"},
      {"eval_only", "true", "brrr eval"},
      {"always_save_checkpoint", "maybe", "true or false"},
      {"full_determinism", "maybe", "true or false"},
      {"eval_strategy", "epoch", "--num-train-epochs"},
      {"save_strategy", "best", "steps or no"},
      {"logging_strategy", "epoch", "--num-train-epochs"},
      {"train_sampling_strategy", "sequential", "random"},
      {"warmup_ratio", "1", "below 1"},
      {"dataset", "openwebtext", "--text"},
      {"tokenizer", "bpe:256", "bpe:N with N from 257"},
      {"tokenizer", "bpe:", "bpe:N with N from 257"},
      {"text", "", "expected a value"},
      {"disable_pass", "a,,b", "expected a value"},
      {"resume", "", "expected true, false or a checkpoint folder"},
      {"max_steps", "-2", "whole number from -1"},
  };
  for (const auto& c : cases) {
    const std::string message = usage_message({{c.key, c.value}});
    expect_parts(message, {c.expected, c.value});
    EXPECT_TRUE(message.starts_with("--" + canonical_key(c.key) + ": ")) << message;
  }
}

TEST(TrainOptionErrors, FieldsMustFitTogether) {
  expect_parts(usage_message({{"n_embd", "100"}, {"n_head", "3"}}), {"divisible", "100", "3"});
  expect_parts(usage_message({{"text", "a"}, {"data", "b"}}), {"--text", "--data"});
  expect_parts(usage_message({{"val_data", "b"}}), {"--val-data needs --data"});
  expect_parts(usage_message({{"rematerialize", "blocks"}, {"activation_memory", "1GiB"}}),
               {"--activation-memory", "rematerialize=auto", "rematerialize=blocks"});
  expect_parts(usage_message({{"tokenize", "stream"}, {"group_by_length", "true"}}),
               {"group_by_length", "--tokenize ahead"});
  expect_parts(usage_message({{"separator", "|"}}), {"--separator", "--sampling random"});
  expect_parts(usage_message({{"separator", "|"}, {"sampling", "documents"}, {"data", "b"}}),
               {"--separator is for text"});
  expect_parts(usage_message({{"pack", "documents"}, {"sampling", "epoch"}}),
               {"--pack documents", "--sampling documents", "epoch"});
  expect_parts(usage_message({{"pack", "documents"}, {"tokenize", "stream"}}),
               {"--sampling documents", "--tokenize ahead"});
  expect_parts(usage_message({{"pack", "documents"}, {"preset", "bert-mini"}}),
               {"--pack documents is for decoders"});
  expect_parts(usage_message({{"pack", "documents"},
                              {"task", "classify"},
                              {"data", "a.tsv"},
                              {"init-from", "folder"}}),
               {"--pack documents is for training on text"});
  expect_parts(usage_message({{"max_steps", "0"}}), {"max-steps", "num-train-epochs"});
  expect_parts(usage_message({{"min_lr", "1"}}), {"min-lr", "learning-rate", "0.001"});
  expect_parts(usage_message({{"optim", "muon"}, {"learning_rate", "0"}}),
               {"--learning-rate above 0", "--muon-learning-rate 0.02"});
  EXPECT_EQ(usage_message({{"optim", "muon"}, {"learning_rate", "0"}, {"muon_learning_rate", "0"}}),
            "(no error)");
  expect_parts(usage_message({{"relative_step", "true"}}), {"--relative-step", "adafactor"});
  expect_parts(usage_message({{"fused_optimizer", "false"}, {"optim", "lion"}}),
               {"--no-fused-optimizer", "adamw", "lion"});
  expect_parts(usage_message({{"fused_optimizer", "false"}, {"param_dtype", "bf16"}}),
               {"--no-fused-optimizer", "fp32", "bf16"});
  expect_parts(usage_message({{"param_dtype", "bf16"}, {"precision", "fp16"}}),
               {"--param-dtype bf16", "fp16"});
  expect_parts(usage_message({{"param_dtype", "bf16"}, {"optim", "adafactor"}}),
               {"--param-dtype bf16", "adafactor", "lion"});
  expect_parts(usage_message({{"resume", "true"}, {"overwrite", "true"}}),
               {"--resume", "--overwrite"});
  // Whether a checkpoint has a base that may have moved is known once it is found.
  EXPECT_EQ(usage_message({{"resume", "true"}, {"init_from", "m"}}), "(no error)");
}

// Whatever their order: none of the two may go by unnoticed.
TEST(TrainOptionErrors, ContradictionsNameBoth) {
  const struct {
    KeyValues given;
    const char *first, *second;
  } cases[] = {
      {{{"bf16", "true"}, {"fp16", "true"}}, "--bf16 and", "--fp16 contradict"},
      {{{"bf16", "true"}, {"precision", "fp32"}}, "--bf16 and", "--precision fp32"},
      {{{"save_strategy", "no"}, {"save_steps", "5"}}, "--save-strategy no", "--save-steps 5"},
      {{{"do_eval", "false"}, {"eval_steps", "5"}}, "--do-eval false", "--eval-steps 5"},
      {{{"batch_size", "4"}, {"train_batch_size", "8"}}, "--batch-size 4", "--train-batch-size 8"},
      {{{"warmup_steps", "9"}, {"warmup_ratio", "0.1"}}, "--warmup-steps 9", "--warmup-ratio 0.1"},
      {{{"activation_memory", "1GiB"}, {"rematerialize", "blocks"}},
       "--activation-memory 1GiB",
       "--rematerialize blocks"},
      {{{"gradient_checkpointing", "true"}, {"rematerialize", "all"}},
       "--gradient-checkpointing",
       "--rematerialize all"}};
  for (const auto& c : cases) {
    expect_parts(usage_message(c.given), {c.first, c.second});
    if (c.given[0].first == "activation_memory") continue;  // has a message of its own
    expect_parts(usage_message({c.given[1], c.given[0]}), {"contradict each other; keep one"});
  }
  for (const KeyValues& alike : {KeyValues{{"bf16", "false"}, {"fp16", "true"}},
                                 {{"lr", "1e-3"}, {"learning_rate", "0.001"}},
                                 {{"warmup_steps", "0.1"}, {"warmup_ratio", "0.1"}},
                                 {{"save_strategy", "steps"}, {"save_steps", "5"}},
                                 {{"activation_memory", "1GiB"}, {"rematerialize", "auto"}},
                                 {{"disable_pass", "a"}, {"disable_pass", "b"}}})
    EXPECT_EQ(usage_message(alike), "(no error)") << alike[0].first;

  test::TempFolder folder;
  const std::string toml = (folder / "a.toml").string(), py = (folder / "a.py").string();
  write_file_atomically(toml, "bf16 = true\n\nfp16 = true\n");
  expect_parts(usage_message({{"config", toml}}), {"a.toml:1: bf16", "a.toml:3: fp16"});
  write_file_atomically(py, "batch_size = 4\nn_layer = 2\nbatch_size = 4\n");
  expect_parts(usage_message({{"config", py}}), {"a.py:1: batch_size", "a.py:3: batch_size"});
  // The command line lies over a file.
  write_file_atomically(toml, "bf16 = true\nwarmup_steps = 7\n");
  const TrainOptions o =
      resolve({{"config", toml}, {"precision", "fp16"}, {"warmup_ratio", "0.5"}});
  EXPECT_EQ(o.precision, Precision::fp16);
  EXPECT_EQ(o.warmup_steps, 0.5);
}

TEST(TrainOptionErrors, WhatLiesOverReplacesByAnyName) {
  const KeyValues all = overlaid(
      {{"precision", "bf16"}, {"seed", "3"}, {"activation_memory", "1GiB"}, {"disable_pass", "a"}},
      {{"fp16", "true"}, {"rematerialize", "all"}, {"disable_pass", "b"}});
  EXPECT_EQ(all, (KeyValues{{"seed", "3"},
                            {"disable_pass", "a"},
                            {"fp16", "true"},
                            {"rematerialize", "all"},
                            {"disable_pass", "b"}}));
}

TEST(TrainOptionErrors, FilesNameTheLine) {
  test::TempFolder folder;
  const std::string file = (folder / "run.toml").string();
  const auto message = [&](const char* content) {
    write_file_atomically(file, content);
    return usage_message({{"config", file}});
  };
  expect_parts(message("a = 1\n"), {"run.toml:1: ", "unknown option 'a'"});
  expect_parts(message("[model]\n\nn_layr = 1\n"), {"run.toml:3: ", "did you mean 'n_layer'"});
  expect_parts(message("\nn_layer = 'x'\n"), {"run.toml:2: n_layer: ", "whole number", "'x'"});
  expect_parts(message("n_layer = 1.5\n"), {"run.toml:1: n_layer: ", "1.5"});
  expect_parts(message("[#"), {"run.toml", "not valid TOML"});  // an assertion of the library
  expect_parts(message("n_layer = \n"), {"run.toml:1: not valid TOML"});
  expect_parts(message("n_layer = 1\nn_layer = 2\n"), {"run.toml:2: not valid TOML"});
  expect_parts(message("seed = 1979-05-27\n"), {"run.toml:1", "expected a string, a number"});
  expect_parts(message("text = [['a']]\n"), {"run.toml:1", "expected a string"});
  expect_parts(message("[a.b]\nseed = 1\n"), {"nested tables"});
  expect_parts(message("config = 'other.toml'\n"), {"run.toml:1: config"});
  expect_parts(message("\xff\xfe"), {"run.toml", "not valid TOML"});
  EXPECT_EQ(message(""), "(no error)");
  EXPECT_EQ(message("text = []\n"), "(no error)");
  expect_parts(usage_message({{"config", (folder / "absent.toml").string()}}),
               {"--config: ", "absent.toml", "No such file"});
  expect_parts(usage_message({{"config", folder.path().string()}}), {"--config: ", "folder"});
}

}  // namespace
}  // namespace brrr::train
