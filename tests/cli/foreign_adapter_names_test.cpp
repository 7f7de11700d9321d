// Names for adapters and preferences that users bring from TRL, LLaMA-Factory, MLX-LM and axolotl.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/temp_folder.h"
#include "train/options.h"

namespace brrr::train {
namespace {

// TRL's DPOConfig.
TEST(ForeignAdapterNames, DpoConfigIsUnderstood) {
  const KeyValues pairs{{"task", "dpo"}, {"data", "p.jsonl"}, {"init_from", "model"}};
  const auto with = [&](KeyValues more) {
    more.insert(more.begin(), pairs.begin(), pairs.end());
    return more;
  };
  const TrainOptions o = resolve(with({{"beta", "0.25"},
                                       {"loss_type", "ipo"},
                                       {"max_length", "512"},
                                       {"precompute_ref_log_probs", "True"},
                                       {"precompute_ref_batch_size", "8"},
                                       {"truncation_mode", "keep_start"},
                                       {"reference_free", "False"},
                                       {"ref_model", "None"},
                                       {"padding_free", "True"},
                                       {"disable_dropout", "True"}}));
  EXPECT_EQ(o.dpo_beta, 0.25);
  EXPECT_EQ(o.dpo_loss, "ipo");
  EXPECT_EQ(o.context, 512);
  EXPECT_EQ(o.learning_rate, 1e-6);
  EXPECT_EQ(resolve(with({{"lora_r", "8"}})).learning_rate, 1e-5);
  EXPECT_USER_ERROR(resolve(with({{"loss_type", "hinge"}})), "sigmoid");
  EXPECT_USER_ERROR(resolve(with({{"truncation_mode", "keep_end"}})), "loses its end");
  EXPECT_USER_ERROR(resolve(with({{"sync_ref_model", "True"}})),
                    "the model that the run starts from");
  EXPECT_USER_ERROR(resolve(with({{"rpo_alpha", "1.0"}})), "--dpo-loss: sigmoid and ipo");
}

// The fields of LLaMA-Factory's examples for LoRA, as its command line takes them.
TEST(ForeignAdapterNames, LlamaFactoryIsUnderstood) {
  const KeyValues sft{{"model_name_or_path", "model"},
                      {"trust_remote_code", "true"},
                      {"stage", "sft"},
                      {"do_train", "true"},
                      {"finetuning_type", "lora"},
                      {"lora_target", "all"},
                      {"data", "c.jsonl"},
                      {"template", "default"},
                      {"cutoff_len", "2048"},
                      {"overwrite_cache", "true"},
                      {"preprocessing_num_workers", "16"},
                      {"dataloader_num_workers", "4"},
                      {"output_dir", "out"},
                      {"logging_steps", "10"},
                      {"save_steps", "500"},
                      {"plot_loss", "true"},
                      {"overwrite_output_dir", "true"},
                      {"save_only_model", "false"},
                      {"report_to", "none"},
                      {"resume_from_checkpoint", "null"},
                      {"per_device_train_batch_size", "1"},
                      {"gradient_accumulation_steps", "8"},
                      {"num_train_epochs", "3.0"},
                      {"lr_scheduler_type", "cosine"},
                      {"warmup_ratio", "0.1"},
                      {"bf16", "true"},
                      {"ddp_timeout", "180000000"},
                      {"val_size", "0.1"},
                      {"flash_attn", "fa2"},
                      {"enable_liger_kernel", "true"},
                      {"train_on_prompt", "false"},
                      {"mask_history", "false"}};
  const auto with = [&](KeyValues more) {
    more.insert(more.begin(), sft.begin(), sft.end());
    return more;
  };
  const TrainOptions o = resolve(sft);
  EXPECT_EQ(o.task, TrainTask::chat);
  EXPECT_EQ(o.lora_r, 8);
  EXPECT_EQ(o.lora_targets, std::vector<std::string>{"all-linear"});
  EXPECT_EQ(o.context, 2048);
  EXPECT_EQ(o.val_fraction, 0.1);
  EXPECT_EQ(o.precision, Precision::bfloat16);
  const TrainOptions q = resolve(
      with({{"lora_rank", "16"}, {"quantization_bit", "4"}, {"quantization_method", "bnb"}}));
  EXPECT_EQ(q.lora_r, 16);
  EXPECT_TRUE(q.load_in_4bit);
  EXPECT_EQ(
      resolve(with({{"quantization_bit", "4"}, {"quantization_type", "nf4"}})).load_in_4bit_type,
      "nf4");
  EXPECT_TRUE(resolve(with({{"quantization_bit", "8"}})).load_in_8bit);
  const TrainOptions pairs = resolve({{"model_name_or_path", "model"},
                                      {"stage", "dpo"},
                                      {"finetuning_type", "full"},
                                      {"data", "p.jsonl"},
                                      {"pref_beta", "0.2"},
                                      {"pref_loss", "ipo"},
                                      {"pure_bf16", "true"}});
  EXPECT_EQ(pairs.task, TrainTask::dpo);
  EXPECT_EQ(pairs.lora_r, 0);
  EXPECT_EQ(pairs.dpo_beta, 0.2);
  EXPECT_EQ(pairs.dpo_loss, "ipo");
  EXPECT_EQ(pairs.param_dtype, Precision::bfloat16);
  EXPECT_USER_ERROR(resolve(with({{"stage", "kto"}})), "expected pt");
  EXPECT_USER_ERROR(resolve(with({{"finetuning_type", "oft"}})), "expected lora or full");
  EXPECT_USER_ERROR(resolve(with({{"template", "llama3"}})), "--chat-template FILE");
  EXPECT_USER_ERROR(resolve(with({{"train_on_prompt", "true"}})), "learn answers alone");
  EXPECT_USER_ERROR(resolve(with({{"quantization_bit", "3"}})), "expected 4 or 8");
  EXPECT_USER_ERROR(resolve(with({{"quantization_method", "hqq"}})), "--load-in-4bit");
  EXPECT_USER_ERROR(resolve(with({{"adapter_name_or_path", "a"}})),
                    "trains the adapter in FOLDER further");
  EXPECT_USER_ERROR(resolve(with({{"dataset", "alpaca_en_demo"}})), "--data FILE.jsonl");
  EXPECT_USER_ERROR(resolve(with({{"pref_loss", "orpo"}})), "sigmoid");
}

// Options of mlx_lm.lora, and options of axolotl that neither transformers nor TRL has.
TEST(ForeignAdapterNames, MlxAndAxolotlAreUnderstood) {
  const TrainOptions mlx = resolve({{"task", "chat"},
                                    {"model", "m"},
                                    {"train", "true"},
                                    {"data", "c.jsonl"},
                                    {"fine_tune_type", "lora"},
                                    {"mask_prompt", "true"},
                                    {"batch_size", "4"},
                                    {"iters", "600"},
                                    {"val_batches", "25"},
                                    {"learning_rate", "1e-5"},
                                    {"steps_per_report", "10"},
                                    {"steps_per_eval", "200"},
                                    {"grad_accumulation_steps", "1"},
                                    {"adapter_path", "adapters"},
                                    {"save_every", "100"},
                                    {"test", "false"},
                                    {"test_batches", "500"},
                                    {"max_seq_length", "2048"},
                                    {"grad_checkpoint", "true"},
                                    {"seed", "0"}});
  EXPECT_EQ(mlx.init_from, "m");
  EXPECT_EQ(mlx.lora_r, 8);
  EXPECT_EQ(mlx.max_steps, 600);
  EXPECT_EQ(mlx.eval_batches, 25);
  EXPECT_EQ(mlx.logging_steps, 10);
  EXPECT_EQ(mlx.eval_steps, 200);
  EXPECT_EQ(mlx.save_steps, 100);
  EXPECT_EQ(mlx.output_dir, "adapters");
  EXPECT_EQ(mlx.rematerialize, "blocks");
  EXPECT_USER_ERROR(resolve({{"resume_adapter_file", "a.safetensors"}}), "--init-from FOLDER");
  EXPECT_USER_ERROR(resolve({{"mask_prompt", "true"}}), "--task chat");

  const TrainOptions axolotl = resolve({{"task", "chat"},
                                        {"base_model", "m"},
                                        {"data", "c.jsonl"},
                                        {"adapter", "qlora"},
                                        {"lora_target_linear", "true"},
                                        {"sequence_len", "512"},
                                        {"sample_packing", "true"},
                                        {"eval_sample_packing", "false"},
                                        {"micro_batch_size", "2"},
                                        {"val_set_size", "0.05"},
                                        {"train_on_inputs", "false"},
                                        {"flash_attention", "true"},
                                        {"strict", "false"}});
  EXPECT_EQ(axolotl.init_from, "m");
  EXPECT_EQ(axolotl.lora_r, 16);
  EXPECT_TRUE(axolotl.load_in_4bit);
  EXPECT_EQ(axolotl.context, 512);
  EXPECT_EQ(axolotl.pack, "documents");
  EXPECT_EQ(axolotl.batch_size, 2);
  EXPECT_EQ(axolotl.val_fraction, 0.05);
}

// Translated names select the fine-tuning defaults exactly as --init-from and --task do, whatever
// their order.
TEST(ForeignAdapterNames, DefaultsAreThoseOfOurNames) {
  const TrainOptions ours = resolve({{"init-from", "m"}});
  for (const char* name : {"model", "base_model", "model_name_or_path"}) {
    const TrainOptions o = resolve({{name, "m"}});
    EXPECT_EQ(o.preset, ours.preset) << name;
    EXPECT_EQ(o.learning_rate, ours.learning_rate) << name;
    EXPECT_EQ(o.context, ours.context) << name;
    EXPECT_EQ(o.batch_size, ours.batch_size) << name;
  }
  const KeyValues chat{{"data", "c.jsonl"}, {"init_from", "m"}};
  const auto with = [&](KeyValues first, KeyValues last) {
    first.insert(first.end(), chat.begin(), chat.end());
    first.insert(first.end(), last.begin(), last.end());
    return resolve(first);
  };
  const TrainOptions of_task = with({{"task", "chat"}}, {});
  const KeyValues stage{{"stage", "sft"}}, prompt{{"train_on_prompt", "false"}};
  for (const TrainOptions& o : {with(stage, prompt), with(prompt, stage)}) {
    EXPECT_EQ(o.task, TrainTask::chat);
    EXPECT_EQ(o.preset, of_task.preset);
    EXPECT_EQ(o.sampling, of_task.sampling);
  }
  EXPECT_EQ(with({{"rl", "ipo"}}, {}).dpo_loss, "ipo");
  EXPECT_EQ(with({{"rl", "dpo"}}, prompt).task, TrainTask::dpo);
}

TEST(ForeignAdapterNames, FullTrainingContradictsARank) {
  const auto with = [](KeyValues more) {
    more.emplace_back("init_from", "m");
    return resolve(more);
  };
  const char* kContradict = "contradict each other";
  EXPECT_USER_ERROR(with({{"finetuning_type", "full"}, {"lora_rank", "8"}}), kContradict);
  EXPECT_USER_ERROR(with({{"lora_rank", "8"}, {"adapter", "none"}}), "--adapter none");
  EXPECT_USER_ERROR(with({{"use_peft", "false"}, {"lora_r", "8"}}), kContradict);
  EXPECT_USER_ERROR(with({{"adapter_path", "a"}, {"fine_tune_type", "full"}}), kContradict);
  EXPECT_EQ(with({{"adapter_path", "a"}}).lora_r, 8);
  EXPECT_EQ(with({{"qlora", "false"}, {"lora_r", "4"}}).lora_r, 4);
  EXPECT_EQ(with({{"adapter_path", "a"}, {"lora_rank", "4"}}).lora_r, 4);
  EXPECT_EQ(with({{"lora_rank", "4"}, {"fine_tune_type", "lora"}}).lora_r, 4);
}

TEST(ForeignAdapterNames, UsualValuesAreRead) {
  EXPECT_EQ(resolve({{"val_batches", "-1"}}).eval_batches, 0);
  EXPECT_EQ(resolve({{"bf16", "auto"}}).precision, Precision::bfloat16);
  EXPECT_EQ(resolve({{"resume_from_checkpoint", "null"}}).resume, "false");
  const TrainOptions o =
      resolve({{"init_from", "m"}, {"lora_r", "4"}, {"lora_target", "q_proj, v_proj"}});
  EXPECT_EQ(o.lora_targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_USER_ERROR(resolve({{"grad_accumulation_steps", "2"}}), "micro-batches");
  test::TempFolder folder;
  const std::string path = (folder / "sft.yaml").string();
  write_file_atomically(path, "stage: sft\n");
  EXPECT_USER_ERROR(resolve({{"config", path}}), "YAML is not read");
  const std::string toml = (folder / "sft.toml").string();
  write_file_atomically(toml,
                        "base_model = 'm'\nlora_r = 4\nlora_target = ['q_proj']\nbf16 = 'auto'\n");
  EXPECT_EQ(resolve({{"config", toml}}).lora_targets, std::vector<std::string>{"q_proj"});
  EXPECT_EQ(resolve({{"config", toml}}).init_from, "m");
}

// --data FOLDER, as MLX-LM takes it.
TEST(ForeignAdapterNames, FolderOfConversationsHasItsValidationFile) {
  test::TempFolder folder;
  const auto options = [&](KeyValues more) {
    more.insert(more.begin(), {{"task", "chat"}, {"init_from", "m"}});
    more.emplace_back("data", folder.path().string());
    return more;
  };
  EXPECT_USER_ERROR(resolve(options({})), "has no train.jsonl");
  write_file_atomically(folder / "train.jsonl", "{}");
  EXPECT_EQ(resolve(options({})).data, std::vector{(folder / "train.jsonl").string()});
  EXPECT_TRUE(resolve(options({})).val_data.empty());
  write_file_atomically(folder / "valid.jsonl", "{}");
  EXPECT_EQ(resolve(options({})).val_data, std::vector{(folder / "valid.jsonl").string()});
  EXPECT_EQ(resolve(options({{"val_data", "v.jsonl"}})).val_data,
            std::vector<std::string>{"v.jsonl"});
  EXPECT_TRUE(resolve(options({{"val_fraction", "0.2"}})).val_data.empty());
  EXPECT_USER_ERROR(resolve({{"data", folder.path().string()}}), "add --task chat");

  // A resumed run finds the files in the folder's new place.
  const TrainOptions recorded = resolve(options({}));
  test::TempFolder moved;
  for (const char* name : {"train.jsonl", "validation.jsonl"})
    write_file_atomically(moved / name, "{}");
  const TrainOptions now = resolve({{"resume", "run"}, {"data", moved.path().string()}});
  const TrainOptions resumed = merge_for_resume(recorded, now, "run");
  EXPECT_EQ(resumed.data, std::vector{(moved / "train.jsonl").string()});
  EXPECT_EQ(resumed.val_data, std::vector{(moved / "validation.jsonl").string()});
}

}  // namespace
}  // namespace brrr::train
