// The option table of `brrr train`: every name and alias, layers, suggestions, bad values.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/options.h"
#include "support/temp_folder.h"
#include "train/options.h"

namespace brrr::train {
namespace {

TEST(TrainOptions, NamesAreUniqueAndKebab) {
  std::set<std::string> seen;
  for (const auto& row : train_option_table().rows()) {
    EXPECT_FALSE(row.help.empty() && row.stands_for.empty()) << row.name;
    std::vector<std::string> names = row.aliases;
    names.push_back(row.name);
    for (const std::string& name : names) {
      EXPECT_TRUE(seen.insert(name).second) << name << " appears twice";
      EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string::npos)
          << name;
    }
  }
  for (const auto& row : train_option_table().rows())
    EXPECT_TRUE(row.stands_for.empty() || seen.count(row.stands_for)) << row.name;
}

// Names that users bring, and the field they must reach.
TEST(TrainOptions, EveryForeignNameReachesItsField) {
  const struct {
    const char *key, *value, *canonical, *shown;
  } cases[] = {
      // Hugging Face TrainingArguments
      {"output_dir", "o", "output-dir", "o"},
      {"max_steps", "7", "max-steps", "7"},
      {"per_device_train_batch_size", "3", "batch-size", "3"},
      {"per_gpu_train_batch_size", "3", "batch-size", "3"},
      {"per_device_eval_batch_size", "5", "eval-batch-size", "5"},
      {"gradient_accumulation_steps", "2", "gradient-accumulation-steps", "2"},
      {"learning_rate", "0.5", "learning-rate", "0.5"},
      {"lr_scheduler_type", "constant_with_warmup", "lr-scheduler-type", "constant_with_warmup"},
      {"lr_scheduler_type", "cosine_with_min_lr", "lr-scheduler-type", "cosine"},
      {"warmup_steps", "0.25", "warmup-steps", "0.25"},
      {"warmup_ratio", "0.25", "warmup-steps", "0.25"},
      {"weight_decay", "0.2", "weight-decay", "0.2"},
      {"adam_beta1", "0.8", "adam-beta1", "0.8"},
      {"adam_beta2", "0.8", "adam-beta2", "0.8"},
      {"adam_epsilon", "1e-6", "adam-epsilon", "1e-06"},
      {"max_grad_norm", "0", "max-grad-norm", "0"},
      {"optim", "adamw_torch", "optim", "adamw"},
      {"optim", "adamw_torch_fused", "optim", "adamw"},
      {"optim", "adamw_bnb_8bit", "optim", "adamw_8bit"},
      {"optim", "lion_32bit", "optim", "lion"},
      {"sgd_momentum", "0.8", "momentum", "0.8"},
      {"torch_compile", "False", "compile", "false"},
      {"dataloader_num_workers", "4", "dataloader-num-workers", "4"},
      {"dataloader_prefetch_factor", "3", "dataloader-prefetch-factor", "3"},
      {"gradient_checkpointing", "True", "rematerialize", "blocks"},
      {"activation_memory", "1.5GiB", "activation-memory", "1.5GiB"},
      {"seed", "42", "seed", "42"},
      {"data_seed", "43", "data-seed", "43"},
      {"logging_steps", "9", "logging-steps", "9"},
      {"logging_strategy", "no", "logging-steps", "0"},
      {"eval_strategy", "no", "eval-steps", "0"},
      {"evaluation_strategy", "no", "eval-steps", "0"},
      {"eval_steps", "11", "eval-steps", "11"},
      {"save_strategy", "no", "save-steps", "0"},
      {"save_steps", "12", "save-steps", "12"},
      {"save_total_limit", "1", "save-total-limit", "1"},
      {"resume_from_checkpoint", "True", "resume", "true"},
      {"resume_from_checkpoint", "runs/a/checkpoint-5", "resume", "runs/a/checkpoint-5"},
      {"overwrite_output_dir", "1", "overwrite", "true"},
      {"disable_tqdm", "True", "disable-tqdm", "true"},
      {"report_to", "none", "report-to", "none"},
      {"report_to", "jsonl", "report-to", "none"},
      {"report_to", "all", "report-to", "tensorboard"},
      {"run_name", "r", "run-name", "r"},
      {"use_cpu", "true", "device", "cpu"},
      {"no_cuda", "true", "device", "cpu"},
      {"bf16", "False", "precision", "fp32"},
      {"train_sampling_strategy", "random", "sampling", "epoch"},
      {"train_sampling_strategy", "group_by_length", "sampling", "group_by_length"},
      {"group_by_length", "true", "sampling", "group_by_length"},
      {"packing", "true", "pack", "documents"},
      {"hidden_size", "64", "n-embd", "64"},
      {"num_hidden_layers", "2", "n-layer", "2"},
      {"num_attention_heads", "2", "n-head", "2"},
      {"model_name_or_path", "m", "init-from", "m"},
      {"train_file", "t.txt", "text", "t.txt"},
      // nanoGPT
      {"out_dir", "o", "output-dir", "o"},
      {"eval_interval", "10", "eval-steps", "10"},
      {"eval_iters", "10", "eval-batches", "10"},
      {"log_interval", "10", "logging-steps", "10"},
      {"init_from", "scratch", "init-from", "scratch"},
      {"init_from", "resume", "resume", "true"},
      {"batch_size", "3", "batch-size", "3"},
      {"block_size", "32", "context", "32"},
      {"n_layer", "2", "n-layer", "2"},
      {"n_head", "2", "n-head", "2"},
      {"n_embd", "64", "n-embd", "64"},
      {"bias", "True", "bias", "true"},
      {"max_iters", "7", "max-steps", "7"},
      {"beta1", "0.8", "adam-beta1", "0.8"},
      {"beta2", "0.8", "adam-beta2", "0.8"},
      {"grad_clip", "0.5", "max-grad-norm", "0.5"},
      {"decay_lr", "False", "lr-scheduler-type", "constant"},
      {"warmup_iters", "5", "warmup-steps", "5"},
      {"lr_decay_iters", "50", "lr-decay-steps", "50"},
      {"min_lr", "1e-05", "min-lr", "1e-05"},
      {"dtype", "float32", "precision", "fp32"},
      {"device", "cpu", "device", "cpu"},
      {"compile", "off", "compile", "false"},
      {"wandb_run_name", "r", "run-name", "r"},
  };
  const auto& table = train_option_table();
  for (const auto& c : cases) {
    std::string kebab = c.key;
    std::replace(kebab.begin(), kebab.end(), '_', '-');
    for (const std::string& key : {std::string(c.key), kebab, "--" + kebab}) {
      const TrainOptions options = resolve({{key, c.value}});
      const auto shown = table.find(c.canonical).get(options);
      ASSERT_EQ(shown.size(), 1u) << key;
      EXPECT_EQ(shown[0], c.shown) << key;
      EXPECT_TRUE(options.was_given(c.canonical)) << key;
    }
  }
}

TEST(TrainOptions, PresetsAreNanoGpts) {
  const TrainOptions cpu = resolve({});
  EXPECT_EQ(cpu.preset, "char-cpu");
  EXPECT_EQ(cpu.model_settings.at("n-layer"), "4");
  EXPECT_EQ(cpu.model_settings.at("n-head"), "4");
  EXPECT_EQ(cpu.model_settings.at("n-embd"), "128");
  EXPECT_EQ(cpu.context, 64);
  EXPECT_EQ(cpu.batch_size, 12);
  EXPECT_EQ(cpu.max_steps, 2000);
  EXPECT_EQ(cpu.dropout, 0);
  EXPECT_EQ(cpu.learning_rate, 1e-3);
  EXPECT_EQ(cpu.min_lr, 1e-4);
  EXPECT_EQ(cpu.adam_beta2, 0.99);
  EXPECT_EQ(cpu.warmup_steps, 100);
  EXPECT_EQ(cpu.eval_steps, 250);
  EXPECT_EQ(cpu.eval_batches, 20);
  EXPECT_EQ(cpu.logging_steps, 1);
  EXPECT_EQ(cpu.model_settings.at("bias"), "false");
  TrainOptions plain;  // the struct's defaults are this preset
  plain.min_lr = 1e-4;
  plain.data_seed = plain.seed;
  plain.eval_batch_size = 12;
  plain.save_steps = 250;
  plain.random_operations = 0;
  plain.random_erasing = 0;
  for (const auto& [name, value] : models::find_architecture("gpt2").defaults())
    plain.model_settings[name] = value;
  EXPECT_EQ(cpu, plain);

  const TrainOptions big = resolve({{"preset", "char"}});
  EXPECT_EQ(big.model_settings.at("n-layer"), "6");
  EXPECT_EQ(big.model_settings.at("n-head"), "6");
  EXPECT_EQ(big.model_settings.at("n-embd"), "384");
  EXPECT_EQ(big.context, 256);
  EXPECT_EQ(big.batch_size, 64);
  EXPECT_EQ(big.max_steps, 5000);
  EXPECT_EQ(big.dropout, 0.2);
  EXPECT_EQ(big.eval_batches, 200);
  EXPECT_EQ(big.min_lr, 1e-4);

  const TrainOptions gpt2 = resolve({{"preset", "gpt2"}});
  EXPECT_EQ(gpt2.vocab_size, 50257);
  EXPECT_EQ(gpt2.context, 1024);
  EXPECT_EQ(gpt2.model_settings.at("n-embd"), "768");
  EXPECT_EQ(gpt2.model_settings.at("bias"), "true");
  EXPECT_EQ(gpt2.learning_rate, 6e-4);
  EXPECT_EQ(gpt2.min_lr, 6e-5);
  EXPECT_EQ(gpt2.tokenizer, "gpt2");
  const TrainOptions xl = resolve({{"preset", "gpt2-xl"}});
  EXPECT_EQ(xl.model_settings.at("n-layer"), "48");
  EXPECT_EQ(xl.model_settings.at("n-head"), "25");
  EXPECT_EQ(xl.model_settings.at("n-embd"), "1600");
}

// Presets are AdamW's; other optimizers are given what is usual for them, unless the user says.
TEST(TrainOptions, AnArchitectureBringsItsPresetsAndOptions) {
  const TrainOptions llama = resolve({{"architecture", "llama"}});
  EXPECT_EQ(llama.preset, "llama-char") << "its first preset stands for it";
  EXPECT_EQ(llama.model_settings.at("num-key-value-heads"), "2");
  EXPECT_FALSE(llama.model_settings.contains("bias")) << "an option of GPT-2";
  const TrainOptions named = resolve({{"preset", "smollm-135m"}, {"n_kv_head", "9"}});
  EXPECT_EQ(named.architecture, "llama");
  EXPECT_EQ(named.model_settings.at("num-key-value-heads"), "9");
  EXPECT_EQ(options_from_json(to_json(named), "record").model_settings, named.model_settings);

  EXPECT_USER_ERROR(resolve({{"num-key-value-heads", "2"}}),
                    "--num-key-value-heads is not an option of the architecture gpt2");
  EXPECT_USER_ERROR(resolve({{"preset", "llama-char"}, {"bias", "true"}}),
                    "--bias is not an option of the architecture llama");
  EXPECT_USER_ERROR(resolve({{"preset", "gpt2"}, {"architecture", "llama"}}),
                    "--preset gpt2 is of the architecture gpt2; got --architecture llama");
  EXPECT_USER_ERROR(resolve({{"architecture", "griffin"}}), "expected one of gpt2, llama");
  EXPECT_USER_ERROR(resolve({{"preset", "llama-char"}, {"num-key-value-heads", "3"}}),
                    "n-head must be a multiple of num-key-value-heads");
}

TEST(TrainOptions, AModelTypeNamesItsArchitecture) {
  for (const char* type : {"mistral", "qwen2", "qwen3"}) {
    const TrainOptions o = resolve({{"architecture", type}});
    EXPECT_EQ(o.architecture, "llama");
    EXPECT_EQ(o.model_settings.at("model-type"), type);
  }
  EXPECT_EQ(resolve({{"architecture", "llama"}}).model_settings.at("model-type"), "llama");
}

// An option that two architectures have is read and shown as the chosen one has it.
TEST(TrainOptions, ASharedOptionBelongsToTheChosenArchitecture) {
  const auto& row = train_option_table().find("intermediate-size");
  std::set<std::string> texts;
  for (const models::Architecture* a : models::all_architectures()) {
    const models::ModelOption* own = a->find_option("intermediate-size");
    if (own == nullptr) continue;
    EXPECT_NE(row.help.find(own->help), std::string::npos) << a->name;
    texts.insert(own->help);
    TrainOptions o;
    o.architecture = a->name;
    EXPECT_EQ(row.get(o)[0], own->shown_default);
    row.set(o, "48");
    EXPECT_EQ(o.model_settings.at("intermediate-size"), own->canonical("48"));
  }
  EXPECT_GT(texts.size(), 1u) << "two meanings of one name";
}

TEST(TrainOptions, OptimizersBringTheirNumbers) {
  const auto with = [](const char* optim, KeyValues more = {}) {
    more.push_back({"optim", optim});
    return resolve(more);
  };
  EXPECT_EQ(with("adamw_8bit").learning_rate, 1e-3);
  EXPECT_EQ(with("muon").learning_rate, 1e-3);
  EXPECT_EQ(with("muon").muon_learning_rate, 0.02);
  const TrainOptions lion = with("lion");
  EXPECT_EQ(lion.learning_rate, 3.33e-4);
  EXPECT_EQ(lion.min_lr, 3.33e-5);
  EXPECT_EQ(lion.weight_decay, 0.3);
  EXPECT_EQ(lion.adam_beta2, 0.99);
  EXPECT_EQ(with("lion", {{"preset", "gpt2"}}).adam_beta2, 0.99);
  EXPECT_EQ(with("lion", {{"adam_beta2", "0.95"}}).adam_beta2, 0.95);
  EXPECT_EQ(with("lion", {{"lr", "0.5"}, {"weight_decay", "1"}}).learning_rate, 0.5);
  EXPECT_EQ(with("lion", {{"lr", "0.5"}, {"weight_decay", "1"}}).weight_decay, 1);
  EXPECT_EQ(with("sgd").learning_rate, 0.1);
  EXPECT_EQ(with("sgd").weight_decay, 0);
  EXPECT_EQ(with("sgd", {{"lr", "1"}}).learning_rate, 1);
  // As the paper without a learning rate, as transformers' Trainer with one.
  EXPECT_TRUE(with("adafactor").relative_step);
  EXPECT_FALSE(with("adafactor", {{"lr", "1e-3"}}).relative_step);
  EXPECT_TRUE(with("adafactor", {{"lr", "1e-3"}, {"relative_step", "true"}}).relative_step);
  EXPECT_FALSE(with("adafactor", {{"relative_step", "false"}}).relative_step);
}

TEST(TrainOptions, LaterLayersWin) {
  test::TempFolder folder;
  const std::string file = (folder / "run.toml").string();
  write_file_atomically(file,
                        "preset = 'char'\n[model]\nn_layer = 3\nn-head = 2\ndropout = 0\n"
                        "[training]\nlearning_rate = 1e-2\n[data]\ntext = ['a.txt', 'b,c.txt']\n");
  const TrainOptions from_file = resolve({{"config", file}});
  EXPECT_EQ(from_file.preset, "char");
  EXPECT_EQ(from_file.model_settings.at("n-layer"), "3");
  EXPECT_EQ(from_file.model_settings.at("n-embd"), "384");  // the preset of the file
  EXPECT_EQ(from_file.dropout, 0);
  EXPECT_EQ(from_file.min_lr, 1e-3);  // follows the rate
  EXPECT_EQ(from_file.text, (std::vector<std::string>{"a.txt", "b,c.txt"}));

  // The command line wins whatever the order; its list replaces the file's.
  const TrainOptions both = resolve({{"n_layer", "6"},
                                     {"text", "d.txt"},
                                     {"config", file},
                                     {"text", "e.txt"},
                                     {"preset", "char-cpu"}});
  EXPECT_EQ(both.preset, "char-cpu");
  EXPECT_EQ(both.model_settings.at("n-layer"), "6");
  EXPECT_EQ(both.model_settings.at("n-head"), "2");
  EXPECT_EQ(both.text, (std::vector<std::string>{"d.txt", "e.txt"}));
}

}  // namespace
}  // namespace brrr::train
