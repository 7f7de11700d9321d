// The words that users bring: each name of nanoGPT's scripts and of transformers' TrainingArguments
// is understood, and nanoGPT's configuration files are read without being run.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "infer/options.h"
#include "support/temp_folder.h"
#include "train/options.h"

namespace brrr::train {
namespace {

std::string message_of(const KeyValues& given) {
  try {
    resolve(given);
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), ExitCode::kUsage) << e.what();
    return e.what();
  }
  return "";
}

std::string shown(const TrainOptions& options, const char* name) {
  return train_option_table().find(name).get(options).at(0);
}

// transformers 5: the fields of TrainingArguments, and values that its users write.
constexpr std::pair<const char*, const char*> kTrainingArguments[] = {
    {"output_dir", "o"},
    {"per_device_train_batch_size", "8"},
    {"num_train_epochs", "3.0"},
    {"max_steps", "7"},
    {"learning_rate", "5e-5"},
    {"lr_scheduler_type", "linear"},
    {"lr_scheduler_kwargs", "None"},
    {"warmup_steps", "0"},
    {"optim", "adamw_torch_fused"},
    {"optim_args", "None"},
    {"weight_decay", "0.0"},
    {"adam_beta1", "0.9"},
    {"adam_beta2", "0.999"},
    {"adam_epsilon", "1e-8"},
    {"optim_target_modules", "None"},
    {"gradient_accumulation_steps", "1"},
    {"average_tokens_across_devices", "True"},
    {"max_grad_norm", "1.0"},
    {"label_smoothing_factor", "0.0"},
    {"bf16", "False"},
    {"fp16", "False"},
    {"bf16_full_eval", "False"},
    {"fp16_full_eval", "False"},
    {"tf32", "True"},
    {"activation_checkpointing", "False"},
    {"activation_checkpointing_kwargs", "None"},
    {"gradient_checkpointing", "False"},
    {"gradient_checkpointing_kwargs", "{\"use_reentrant\": false}"},
    {"torch_compile", "True"},
    {"torch_compile_backend", "inductor"},
    {"torch_compile_mode", "default"},
    {"use_liger_kernel", "True"},
    {"liger_kernel_config", "None"},
    {"use_cache", "False"},
    {"neftune_noise_alpha", "None"},
    {"torch_empty_cache_steps", "10"},
    {"auto_find_batch_size", "False"},
    {"logging_strategy", "steps"},
    {"logging_steps", "0.1"},
    {"logging_first_step", "False"},
    {"log_on_each_node", "True"},
    {"logging_nan_inf_filter", "True"},
    {"include_num_input_tokens_seen", "no"},
    {"log_level", "passive"},
    {"log_level_replica", "warning"},
    {"disable_tqdm", "False"},
    {"report_to", "none"},
    {"run_name", "r"},
    {"project", "huggingface"},
    {"trackio_space_id", "trackio"},
    {"trackio_bucket_id", "b"},
    {"trackio_static_space_id", "s"},
    {"eval_strategy", "no"},
    {"eval_steps", "0.25"},
    {"eval_delay", "0"},
    {"per_device_eval_batch_size", "8"},
    {"prediction_loss_only", "False"},
    {"eval_on_start", "True"},
    {"eval_do_concat_batches", "True"},
    {"eval_use_gather_object", "False"},
    {"eval_accumulation_steps", "4"},
    {"include_for_metrics", "inputs"},
    {"batch_eval_metrics", "False"},
    {"save_only_model", "False"},
    {"save_strategy", "steps"},
    {"save_steps", "0.5"},
    {"save_on_each_node", "False"},
    {"save_total_limit", "2"},
    {"enable_jit_checkpoint", "True"},
    {"push_to_hub", "False"},
    {"hub_token", "t"},
    {"hub_private_repo", "True"},
    {"hub_model_id", "a/b"},
    {"hub_strategy", "every_save"},
    {"hub_always_push", "False"},
    {"hub_revision", "main"},
    {"load_best_model_at_end", "True"},
    {"metric_for_best_model", "eval_loss"},
    {"greater_is_better", "False"},
    {"ignore_data_skip", "False"},
    {"restore_callback_states_from_checkpoint", "False"},
    {"full_determinism", "True"},
    {"seed", "42"},
    {"data_seed", "42"},
    {"use_cpu", "True"},
    {"accelerator_config", "None"},
    {"parallelism_config", "None"},
    {"dataloader_drop_last", "False"},
    {"dataloader_num_workers", "0"},
    {"dataloader_pin_memory", "True"},
    {"dataloader_persistent_workers", "False"},
    {"dataloader_prefetch_factor", "2"},
    {"dataloader_multiprocessing_context", "spawn"},
    {"dataloader_in_order", "True"},
    {"remove_unused_columns", "True"},
    {"label_names", "labels"},
    {"train_sampling_strategy", "random"},
    {"length_column_name", "length"},
    {"ddp_find_unused_parameters", "False"},
    {"ddp_bucket_cap_mb", "25"},
    {"ddp_broadcast_buffers", "False"},
    {"ddp_static_graph", "False"},
    {"ddp_backend", "nccl"},
    {"ddp_timeout", "1800"},
    {"fsdp", ""},
    {"fsdp_config", "None"},
    {"deepspeed", "None"},
    {"debug", ""},
    {"skip_memory_metrics", "True"},
    {"do_train", "True"},
    {"do_eval", "True"},
    {"do_predict", "False"},
    {"resume_from_checkpoint", "False"},
    {"local_rank", "-1"}};

// The arguments of transformers' run_clm, run_mlm, run_glue, run_ner and their *_no_trainer forms.
constexpr std::pair<const char*, const char*> kExampleScripts[] = {
    {"model_name_or_path", "m"},
    {"config_name", "None"},
    {"config_overrides", "n_embd=64,n_layer=2"},
    {"tokenizer_name", "byte"},
    {"cache_dir", "None"},
    {"use_fast_tokenizer", "True"},
    {"model_revision", "main"},
    {"token", "t"},
    {"use_auth_token", "True"},
    {"trust_remote_code", "True"},
    {"torch_dtype", "auto"},
    {"low_cpu_mem_usage", "True"},
    {"attn_implementation", "sdpa"},
    {"ignore_mismatched_sizes", "True"},
    {"dataset_name", "None"},
    {"dataset_config_name", "None"},
    {"train_file", "t.txt"},
    {"max_train_samples", "None"},
    {"max_eval_samples", "None"},
    {"max_predict_samples", "None"},
    {"streaming", "False"},
    {"block_size", "64"},
    {"max_seq_length", "64"},
    {"max_length", "64"},
    {"overwrite_cache", "True"},
    {"overwrite_output_dir", "True"},
    {"validation_split_percentage", "5"},
    {"preprocessing_num_workers", "4"},
    {"keep_linebreaks", "True"},
    {"line_by_line", "True"},
    {"pad_to_max_length", "True"},
    {"task_name", "None"},
    {"test_file", "None"},
    {"train_split_name", "train"},
    {"validation_split_name", "validation"},
    {"test_split_name", "test"},
    {"remove_splits", "None"},
    {"remove_columns", "None"},
    {"shuffle_train_dataset", "True"},
    {"shuffle_seed", "42"},
    {"metric_name", "None"},
    {"do_regression", "False"},
    {"label_all_tokens", "False"},
    {"return_entity_level_metrics", "True"},
    {"num_warmup_steps", "3"},
    {"max_train_steps", "9"},
    {"checkpointing_steps", "5"},
    {"with_tracking", "True"},
    {"save_total_limit", "None"}};

TEST(ForeignNames, EveryArgumentOfTheExampleScriptsIsUnderstood) {
  for (const auto& [name, value] : kExampleScripts)
    EXPECT_EQ(message_of({{name, value}}), "") << name;
  const TrainOptions o = resolve({{"config_overrides", "n_embd=64,n_layer=2"},
                                  {"validation_split_percentage", "5"},
                                  {"torch_dtype", "bfloat16"},
                                  {"save_total_limit", "None"},
                                  {"num_warmup_steps", "3"},
                                  {"max_train_steps", "9"},
                                  {"max_length", "32"},
                                  {"line_by_line", "True"}});
  EXPECT_EQ(shown(o, "n-embd"), "64");
  EXPECT_EQ(shown(o, "n-layer"), "2");
  EXPECT_EQ(o.val_fraction, 0.05);
  EXPECT_EQ(o.param_dtype, Precision::bfloat16);
  EXPECT_EQ(o.save_total_limit, 0);
  EXPECT_EQ(o.warmup_steps, 3);
  EXPECT_EQ(o.max_steps, 9);
  EXPECT_EQ(o.context, 32);
  EXPECT_EQ(o.sampling, "documents");
  EXPECT_EQ(o.separator, "\n");
  EXPECT_EQ(resolve({{"streaming", "True"}}).tokenize, "stream");
  const TrainOptions pair = resolve({{"task", "classify"},
                                     {"init_from", "m"},
                                     {"data", "f.tsv"},
                                     {"text_column_names", "premise,hypothesis"}});
  EXPECT_EQ(pair.text_column, "premise");
  EXPECT_EQ(pair.text2_column, "hypothesis");
}

TEST(ForeignNames, EveryTrainingArgumentIsUnderstood) {
  for (const auto& [name, value] : kTrainingArguments) {
    if (*value == '\0')
      EXPECT_NO_THROW(train_option_table().find(name)) << name;
    else
      EXPECT_EQ(message_of({{name, value}}), "") << name;
  }
}

// A name without a meaning here may not stand in the way of a resumed run, nor be recorded.
TEST(ForeignNames, WhatChangesNothingLeavesTheOptionsAsTheyAre) {
  const TrainOptions plain = resolve({});
  for (const char* name : {"do_train", "full_determinism", "ddp_backend", "hub_token", "backend",
                           "wandb_project", "metric_for_best_model"}) {
    TrainOptions options =
        resolve({{name, std::string(name) == "metric_for_best_model" ? "loss" : "true"}});
    EXPECT_EQ(to_json(options), to_json(plain)) << name;
    EXPECT_NO_THROW(merge_for_resume(resolve({{"seed", "3"}}), options, "r")) << name;
  }
}

// The best weights are told by any metric of the task, greater or smaller being better.
TEST(ForeignNames, TheMetricForTheBestModelIsOneOfTheTask) {
  const auto with = [](const char* task, const char* metric, const char* greater) {
    return KeyValues{{"task", task},
                     {"data", "a.tsv"},
                     {"init-from", "folder"},
                     {"metric_for_best_model", metric},
                     {"greater_is_better", greater}};
  };
  EXPECT_EQ(resolve(with("classify", "eval_f1_macro", "True")).metric_for_best_model, "f1_macro");
  EXPECT_EQ(resolve(with("classify", "eval_loss", "False")).metric_for_best_model, "loss");
  EXPECT_EQ(resolve(with("regress", "rmse", "False")).metric_for_best_model, "rmse");
  EXPECT_EQ(resolve(with("tokens", "none", "True")).metric_for_best_model, "");
  EXPECT_NE(message_of(with("regress", "rmse", "True"))
                .find("--greater-is-better: expected false, because the best weights of --task "
                      "regress are told by rmse"),
            std::string::npos);
  EXPECT_NE(message_of(with("tokens", "mse", "None"))
                .find("--metric-for-best-model: expected one of f1, f1_macro, precision, recall, "
                      "accuracy, loss for --task tokens; got 'mse'"),
            std::string::npos);
}

TEST(ForeignNames, WhatIsNotDoneIsRefusedWithAWayOut) {
  const struct {
    const char *key, *value, *part;
  } cases[] = {{"do_train", "False", "eval"},
               {"do_predict", "True", "generate"},
               {"push_to_hub", "True", "hf upload"},
               {"deepspeed", "ds.json", "brrr launch"},
               {"fsdp", "full_shard", "--zero"},
               {"label_smoothing_factor", "0.1", "leave it out"},
               {"neftune_noise_alpha", "5", "--dropout"},
               {"save_only_model", "True", "--resume"},
               {"dataloader_drop_last", "True", "leave it out"},
               {"lr_scheduler_kwargs", "{\"num_cycles\": 2}", "--min-lr"},
               {"optim_args", "a=b", "--adam-beta1"},
               {"metric_for_best_model", "accuracy", "expected one of loss"},
               {"greater_is_better", "True", "expected false"},
               {"eval_steps", "1.5", "below 1"},
               {"dataset", "no_such_text", "data prepare"},
               {"wandb_log", "True", "report"},
               {"eval_only", "True", "brrr eval"},
               {"dataset_name", "wikitext", "--text FILE"},
               {"task_name", "sst2", "--task NAME --data FILE.tsv"},
               {"cache_dir", "/tmp/c", "HF_HOME"},
               {"config_name", "gpt2", "--preset"},
               {"model_revision", "v2", "hf download"},
               {"max_train_samples", "100", "--max-steps"},
               {"torch_dtype", "float16", "--precision"},
               {"do_regression", "True", "--task regress"},
               {"config_overrides", "n_embd", "NAME=VALUE"},
               {"model_type", "gpt2", "--architecture gpt2"}};
  for (const auto& c : cases) {
    const std::string message = message_of({{c.key, c.value}});
    EXPECT_NE(message.find(c.part), std::string::npos) << c.key << ": " << message;
    EXPECT_TRUE(message.starts_with("--" + canonical_key(c.key) + ": ")) << message;
  }
}

TEST(ForeignNames, IntervalsMayBeSharesOfAllSteps) {
  const TrainOptions o =
      resolve({{"max_steps", "30"}, {"eval_steps", "0.25"}, {"logging_steps", "10"}});
  EXPECT_EQ(o.interval(o.eval_steps), 8);  // rounded up, as transformers does
  EXPECT_EQ(o.interval(o.save_steps), 8);
  EXPECT_EQ(o.interval(o.logging_steps), 10);
  const TrainOptions back = options_from_json(to_json(o), "r.json");
  EXPECT_EQ(back.interval(back.eval_steps), 8);
  TrainOptions epochs = resolve({{"num_train_epochs", "4"}, {"eval_strategy", "epoch"}});
  epochs.max_steps = 100;
  EXPECT_EQ(epochs.interval(epochs.eval_steps), 25);
  EXPECT_EQ(resolve({{"do_eval", "false"}}).eval_steps, 0);
}

// nanoGPT's train.py and sample.py, each name with a value that its README or its files have.
TEST(ForeignNames, EveryNameOfNanoGptIsUnderstood) {
  constexpr std::pair<const char*, const char*> kTrain[] = {{"out_dir", "out"},
                                                            {"eval_interval", "2000"},
                                                            {"log_interval", "1"},
                                                            {"eval_iters", "200"},
                                                            {"eval_only", "False"},
                                                            {"always_save_checkpoint", "False"},
                                                            {"init_from", "scratch"},
                                                            {"wandb_log", "False"},
                                                            {"wandb_project", "owt"},
                                                            {"wandb_run_name", "gpt2"},
                                                            {"dataset", "shakespeare_char"},
                                                            {"gradient_accumulation_steps", "40"},
                                                            {"batch_size", "12"},
                                                            {"block_size", "1024"},
                                                            {"n_layer", "12"},
                                                            {"n_head", "12"},
                                                            {"n_embd", "768"},
                                                            {"dropout", "0.0"},
                                                            {"bias", "False"},
                                                            {"learning_rate", "6e-4"},
                                                            {"max_iters", "600000"},
                                                            {"weight_decay", "1e-1"},
                                                            {"beta1", "0.9"},
                                                            {"beta2", "0.95"},
                                                            {"grad_clip", "1.0"},
                                                            {"decay_lr", "True"},
                                                            {"warmup_iters", "2000"},
                                                            {"lr_decay_iters", "600000"},
                                                            {"min_lr", "6e-5"},
                                                            {"backend", "nccl"},
                                                            {"device", "cpu"},
                                                            {"dtype", "bfloat16"},
                                                            {"compile", "True"}};
  KeyValues all;
  for (const auto& [name, value] : kTrain) all.emplace_back(name, value);
  EXPECT_EQ(message_of(all), "");
  constexpr std::pair<const char*, const char*> kSample[] = {
      {"init_from", "resume"},   {"out_dir", "out"},     {"start", "\n"},     {"num_samples", "10"},
      {"max_new_tokens", "500"}, {"temperature", "0.8"}, {"top_k", "200"},    {"seed", "1337"},
      {"device", "cpu"},         {"dtype", "bfloat16"},  {"compile", "False"}};
  all.clear();
  for (const auto& [name, value] : kSample) all.emplace_back(name, value);
  EXPECT_EQ(infer::resolve_generate(all).model, "out");
  EXPECT_EQ(infer::resolve_generate({{"init_from", "gpt2-xl"}}).model, "gpt2-xl");
}

TEST(ForeignNames, NanoGptNamesTexts) {
  EXPECT_EQ(resolve({{"preset", "gpt2"}, {"dataset", "shakespeare_char"}}).tokenizer, "char");
  EXPECT_EQ(resolve({{"dataset", "shakespeare"}}).tokenizer, "gpt2");
  test::TempFolder folder;
  const std::string own = (folder / "own").string();
  fs::create_directory(own);
  write_file_atomically(fs::path(own) / "input.txt", "text");
  EXPECT_EQ(resolve({{"dataset", own}}).text, std::vector{own + "/input.txt"});
  write_file_atomically(fs::path(own) / "train.bin", "xx");
  EXPECT_EQ(resolve({{"dataset", own}}).data, std::vector{own});
}

class PythonFiles : public ::testing::Test {
 protected:
  std::string file(const std::string& content) {
    write_file_atomically(folder_ / "config.py", content);
    return (folder_ / "config.py").string();
  }
  test::TempFolder folder_;
};

TEST_F(PythonFiles, AreReadOverTheDefaultsOfTrainPy) {
  const std::string path = file(
      "\"\"\"of several\nlines = 3\n\"\"\"\n# a comment\nimport time\n\n"
      "out_dir = 'out-\\'x\\''  # where\n"
      "wandb_run_name = 'ft-' + str(time.time())\n"
      "gradient_accumulation_steps = 5 * 8\n"
      "max_iters = 2 ** 3 + (10 - 4) // 4 * 100 % 7\n"
      "learning_rate = 1e-3 / 2\nblock_size=1_024\nbias = True\nn_head = -(-6)\n"
      "dataset = \"shakespeare_char\"\r\ndevice = 'cpu'");
  const TrainOptions o = resolve({{"config", path}, {"n_layer", "3"}});
  EXPECT_EQ(o.output_dir, "out-'x'");
  EXPECT_EQ(o.gradient_accumulation_steps, 40);
  EXPECT_EQ(o.max_steps, 8 + 100 % 7);
  EXPECT_EQ(o.learning_rate, 5e-4);
  EXPECT_EQ(o.context, 1024);
  EXPECT_EQ(shown(o, "bias"), "true");
  EXPECT_EQ(shown(o, "n-head"), "6");
  EXPECT_EQ(shown(o, "n-layer"), "3");
  EXPECT_EQ(o.tokenizer, "char");
  EXPECT_EQ(o.run_name, "");
  // What the file leaves out is train.py's.
  const TrainOptions bare = resolve({{"config", file("batch_size = 12\n")}});
  EXPECT_EQ(shown(bare, "n-layer"), "12");
  EXPECT_EQ(shown(bare, "bias"), "false");
  EXPECT_EQ(bare.max_steps, 600000);
  EXPECT_EQ(bare.warmup_steps, 2000);
  EXPECT_EQ(bare.gradient_accumulation_steps, 40);
  // Over a preset that is named, the file alone counts.
  EXPECT_EQ(resolve({{"config", file("batch_size = 7\n")}, {"preset", "char"}}).max_steps, 5000);
}

TEST_F(PythonFiles, LiteralsOfEveryFormAreRead) {
  const TrainOptions o = resolve(
      {{"config", file("n_layer: int = 3\nn_head: 'heads' = 1_2  # twelve\nseed: int\n"
                       "text = ['a.' \"txt\",  # one\n        'b.txt',\n]\n"
                       "disable_pass = 'fuse', 'cse'\n"
                       "learning_rate = (1e-3\n    / 2)\nn_embd = (3) * (2 + \\\n 2)\n"
                       "device = ('cpu')\nrun_name = u'r'\nmax_iters = 5;\nmin_lr = None\n")}});
  EXPECT_EQ(shown(o, "n-layer"), "3");
  EXPECT_EQ(shown(o, "n-head"), "12");
  EXPECT_EQ(shown(o, "n-embd"), "12");
  EXPECT_EQ(o.text, (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(o.disable_pass, (std::vector<std::string>{"fuse", "cse"}));
  EXPECT_EQ(o.learning_rate, 5e-4);
  EXPECT_EQ(o.device, "cpu");
  EXPECT_EQ(o.run_name, "r");
  EXPECT_EQ(o.max_steps, 5);
  EXPECT_TRUE(resolve({{"config", file("text = []\n")}}).text.empty());
}

TEST_F(PythonFiles, NothingElseIsRead) {
  const auto refused = [&](const std::string& content, const char* part) {
    const std::string message = message_of({{"config", file(content)}});
    EXPECT_NE(message.find(part), std::string::npos) << content << "\n" << message;
    EXPECT_NE(message.find("config.py:"), std::string::npos) << message;
  };
  refused("\nbatch_size = int(3)\n", "config.py:2");
  refused("print('x')\n", "not run");
  refused("batch_size = other\n", "'other' is no literal");
  refused("batch_size = 3 3\n", "too much");
  refused("batch_size = 3 / 0\n", "divides by 0");
  refused("batch_size = 9 ** 99\n", "too large");
  refused("batch_size = 9223372036854775807 + 1\n", "too large");
  refused("learning_rate = 1e300 * 1e300\n", "finite");
  refused("batch_size = " + std::string(5000, '(') + "1\n", "too deeply");
  refused("batch_size = " + std::string(5000, '-') + "1\n", "too deeply");
  refused("out_dir = 'open\n", "does not end");
  refused("out_dir = '\\x41'\n", "escape");
  refused("batch_sise = 3\n", "batch_size");
  refused("batch_size += 3\n", "no assignment");
  refused("batch_size = 'many'\n", "whole number");
  refused("if True:\n", "no assignment");
  refused("try:\n", "no assignment");
  refused("batch_size == 3\n", "no assignment");
  refused("\n\nbeta1 = 0.9, 0.95\n", "config.py:3: beta1: expected one value; got a list");
  refused("text = ['a'\nseed = 3\n", "config.py:1: text: expected ','");
  refused("text = ['a',\n", "not closed by ']'");
  refused("text = [['a']]\n", "inside a list");
  refused("text = [None]\n", "None in a list");
  refused("batch_size = 1__0\n", "underscores stand between digits");
  refused("batch_size = {'a': 1}\n", "a dictionary");
  refused("out_dir = f'x'\n", "prefix f");
  refused("batch_size = 3; seed = 4\n", "second statement");
  refused("text = " + std::string(5000, '[') + "\n", "too deeply");
}

}  // namespace
}  // namespace brrr::train
