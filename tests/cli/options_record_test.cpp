// Records of options: JSON and TOML come back as they went, and a resumed run keeps what it must.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/temp_folder.h"
#include "train/options.h"

namespace brrr::train {
namespace {

// A value other than the default for every row, so that a forgotten field shows.
KeyValues unusual() {
  return {{"preset", "gpt2"},
          {"text", "a \"quoted\" b\\c.txt"},
          {"text", "d,e.txt"},
          {"tokenizer", "bpe:300"},
          {"val-fraction", "0.123456789012345678"},
          {"vocab-size", "300"},
          {"n-layer", "3"},
          {"n-head", "7"},
          {"n-embd", "21"},
          {"n-inner", "22"},
          {"scale-attn-weights", "false"},
          {"scale-attn-by-inverse-layer-idx", "true"},
          {"reorder-and-upcast-attn", "true"},
          {"context", "17"},
          {"dropout", "0.3"},
          {"bias", "false"},
          {"init-from", "some\tfolder"},
          {"mlm-probability", "0.25"},
          {"whole-word-mask", "true"},
          {"load-best-model-at-end", "true"},
          {"max-steps", "12"},
          {"num-train-epochs", "1.5"},
          {"batch-size", "3"},
          {"gradient-accumulation-steps", "2"},
          {"learning-rate", "0.1234"},
          {"min-lr", "1e-300"},
          {"lr-scheduler-type", "linear"},
          {"warmup-steps", "0.5"},
          {"lr-decay-steps", "9"},
          {"optim", "adafactor"},
          {"momentum", "0.4"},
          {"muon-learning-rate", "0.5"},
          {"relative-step", "true"},
          {"weight-decay", "0.7"},
          {"adam-beta1", "0.1"},
          {"adam-beta2", "0.2"},
          {"adam-epsilon", "1e-5"},
          {"max-grad-norm", "3"},
          {"seed", "4294967295"},
          {"data-seed", "5"},
          {"sampling", "documents"},
          {"pack", "documents"},
          {"eval-steps", "6"},
          {"eval-batches", "7"},
          {"eval-batch-size", "8"},
          {"logging-steps", "9"},
          {"samples", "10"},
          {"sample-steps", "13"},
          {"sample-prompt", "a\tprompt"},
          {"sample-tokens", "14"},
          {"sample-temperature", "0.25"},
          {"report-to", "none"},
          {"live", "true"},
          {"live-port", "8123"},
          {"disable-tqdm", "true"},
          {"json", "true"},
          {"output-dir", "out"},
          {"run-name", "name"},
          {"save-steps", "11"},
          {"save-total-limit", "12"},
          {"overwrite", "true"},
          {"device", "cpu"},
          {"precision", "bf16"},
          {"float32-matmul-precision", "high"},
          {"init-loss-scale", "32"},
          {"qat", "int4"},
          {"qat-group-size", "64"},
          {"tokenize", "ahead"},
          {"separator", "\n--\n"},
          {"dataloader-num-workers", "3"},
          {"dataloader-prefetch-factor", "5"},
          {"threads", "3"},
          {"memory-limit", "3GiB"},
          {"fit", "true"},
          {"rematerialize", "auto"},
          {"activation-memory", "1.5GiB"},
          {"compile", "false"},
          {"ranks", "2"},
          {"zero", "2"},
          {"deterministic-ranks", "4"},
          {"overlap", "false"},
          {"comm", "mpi"},
          {"rank-timeout", "30"},
          {"elastic", "true"},
          {"max-restarts", "7"},
          {"peer-checkpoint-steps", "9"},
          {"explain", "true"},
          {"explain-dispatch", "true"},
          {"dump-graph", "graphs"},
          {"disable-pass", "simplify,schedule"},
          {"freeze", "embed,h.0-1"}};
}

// The same for the rows that only tasks have.
KeyValues unusual_task() {
  return {{"task", "classify"},
          {"data", "a.tsv"},
          {"init-from", "some folder"},
          {"text-column", "t"},
          {"text2-column", "2"},
          {"label-column", "l"},
          {"header", "no"},
          {"quoting", "csv"},
          {"truncate", "false"},
          {"val-data", "b.tsv"},
          {"sampling", "epoch"},
          {"metric-for-best-model", "f1"},
          {"any-labels", "true"},
          {"lora-r", "4"},
          {"lora-alpha", "3"},
          {"lora-dropout", "0.25"},
          {"rslora", "true"},
          {"lora-targets", "query,value"},
          {"load-in-4bit", "true"},
          {"load-in-4bit-type", "nf4"},
          {"lora-modules-to-save", "pooler"}};
}

/// The same for the rows that only pictures have.
KeyValues unusual_pictures() {
  return {{"task", "images"},        {"data", "pictures"},   {"augment", "strong"},
          {"color-jitter", "0.25"},  {"cutout", "8"},        {"random-operations", "3"},
          {"random-erasing", "0.5"}, {"mixup", "0.2"},       {"label-smoothing", "0.1"},
          {"skip-bad-images", "7"},  {"max-pixels", "1000"}, {"image-cache", "1.5GiB"},
          {"depth", "32"},           {"width-factor", "2"},  {"stem", "cifar"},
          {"num-channels", "1"},     {"image-size", "48"},   {"num-labels", "5"}};
}

/// The same for the rows that only conversations have.
KeyValues unusual_chat() {
  return {{"task", "chat"},
          {"data", "a.jsonl"},
          {"init-from", "some folder"},
          {"chat-template", "chat.jinja"},
          {"lora-r", "4"},
          {"load-in-8bit", "true"}};
}

/// The same for the rows that only pairs of answers have.
KeyValues unusual_pairs() {
  return {{"task", "dpo"},         {"data", "a.jsonl"}, {"init-from", "some folder"},
          {"dpo-loss", "sigmoid"}, {"dpo-beta", "0.3"}, {"dpo-label-smoothing", "0.1"},
          {"truncate", "false"}};
}
/// What does not go with those.
KeyValues unusual_losses() {
  return {{"task", "dpo"}, {"data", "a.jsonl"}, {"init-from", "some folder"}, {"dpo-loss", "ipo"}};
}

TEST(TrainOptionRecords, JsonRoundTrip) {
  for (const KeyValues& given :
       {KeyValues{}, unusual(), unusual_task(), unusual_pictures(), unusual_chat(), unusual_pairs(),
        unusual_losses(), KeyValues{{"data", "x"}, {"val_data", "y"}},
        KeyValues{{"resume", "runs/a"}}, KeyValues{{"fused-optimizer", "false"}}}) {
    TrainOptions options = resolve(given);
    const TrainOptions back = options_from_json(to_json(options), "train_config.json");
    options.given.clear();
    EXPECT_EQ(back, options) << to_json(options);
  }
}

TEST(TrainOptionRecords, UnusualValuesDifferFromEveryDefault) {
  const TrainOptions options = resolve(unusual()), plain = resolve({}),
                     task = resolve(unusual_task()), pictures = resolve(unusual_pictures()),
                     chat = resolve(unusual_chat()), pairs = resolve(unusual_pairs()),
                     losses = resolve(unusual_losses());
  for (const auto& row : train_option_table().rows()) {
    if (!row.get || row.name == "config" || row.name == "resume" || row.name == "param-dtype" ||
        row.name == "data" || row.name == "val-data" || row.name == "bias" ||
        row.name == "fused-optimizer" || row.name == "architecture" ||
        is_foreign_setting(row.name, options))  // one run has options of one architecture
      continue;
    EXPECT_TRUE(row.get(options) != row.get(plain) || row.get(task) != row.get(plain) ||
                row.get(pictures) != row.get(plain) || row.get(chat) != row.get(plain) ||
                row.get(pairs) != row.get(plain) || row.get(losses) != row.get(plain))
        << row.name << " is missing from the functions unusual...()";
  }
}

TEST(TrainOptionRecords, JsonHasPlainTypes) {
  const auto json = nlohmann::json::parse(to_json(resolve({{"text", "a"}, {"text", "b"}})));
  EXPECT_EQ(json["max_steps"], 2000);
  EXPECT_TRUE(json["max_steps"].is_number_integer());
  EXPECT_EQ(json["learning_rate"], 1e-3);
  EXPECT_EQ(json["bias"], false);
  EXPECT_EQ(json["text"], (std::vector<std::string>{"a", "b"}));
}

TEST(TrainOptionRecords, BrokenJsonIsRefused) {
  const auto refused = [](const char* text, const char* part) {
    EXPECT_USER_ERROR(options_from_json(text, "r.json"), part);
    EXPECT_USER_ERROR(options_from_json(text, "r.json"), "r.json");
  };
  refused("[]", "expected an object");
  refused("{", "r.json");
  refused(R"({"n_layr": 3})", "did you mean 'n_layer'");
  refused(R"({"n_layer": "3"})", "expected a whole number");
  refused(R"({"n_layer": 0})", "whole number from 1");
  refused(R"({"n_layer": 1.5})", "expected a whole number");
  refused(R"({"bias": 1})", "expected true or false");
  refused(R"({"dropout": "0"})", "expected a number");
  refused(R"({"text": "a"})", "expected a list of strings");
  refused(R"({"text": [1]})", "expected a list of strings");
  refused(R"({"device": 3})", "expected a string");
}

TEST(TrainOptionRecords, TomlRoundTrip) {
  test::TempFolder folder;
  const std::string file = (folder / "printed.toml").string();
  for (const KeyValues& given :
       {KeyValues{}, unusual(), unusual_task(),
        KeyValues{{"data", "x"}, {"val_data", "y"}, {"vocab_size", "9"}}}) {
    TrainOptions options = resolve(given);
    write_file_atomically(file, to_toml(options));
    TrainOptions back = resolve({{"config", file}});
    // num_train_epochs given beside max_steps: steps win both times.
    back.given.clear();
    back.config.clear();
    options.given.clear();
    EXPECT_EQ(back, options) << to_toml(options);
  }
}

TEST(TrainOptionRecords, ResumeKeepsWhatMustNotChange) {
  TrainOptions recorded = resolve({{"preset", "char"}, {"n_layer", "3"}, {"json", "true"}});
  recorded.given.clear();

  const TrainOptions same = merge_for_resume(recorded, resolve({{"resume", "true"}}), "runs/a");
  EXPECT_EQ(same.preset, "char");
  EXPECT_EQ(same.model_settings.at("n-layer"), "3");
  EXPECT_EQ(same.model_settings.at("n-embd"), "384");
  EXPECT_FALSE(same.json);  // asked anew each time
  EXPECT_TRUE(same.wants_resume());

  const TrainOptions longer = merge_for_resume(
      recorded,
      resolve({{"resume", "true"}, {"max_iters", "9000"}, {"n_layer", "3"}, {"threads", "1"}}),
      "runs/a");
  EXPECT_EQ(longer.max_steps, 9000);
  EXPECT_EQ(longer.threads, 1);
  EXPECT_EQ(longer.batch_size, 64);

  // What is computed again changes no bit: it may be another policy each time.
  recorded.rematerialize = "blocks";
  const TrainOptions within = merge_for_resume(
      recorded, resolve({{"resume", "true"}, {"activation_memory", "2GiB"}}), "runs/a");
  EXPECT_EQ(within.rematerialize, "auto");
  EXPECT_EQ(within.activation_memory, "2GiB");
  const TrainOptions blocks = merge_for_resume(
      within, resolve({{"resume", "true"}, {"gradient_checkpointing", "true"}}), "runs/a");
  EXPECT_EQ(blocks.rematerialize, "blocks");
  EXPECT_EQ(blocks.activation_memory, "");

  EXPECT_USER_ERROR(
      merge_for_resume(recorded, resolve({{"resume", "true"}, {"n_layer", "4"}}), "runs/a"),
      "--resume cannot change --n-layer (3 in runs/a, now 4)");
  for (const auto& option : {std::pair{"batch_size", "3"},
                             {"optim", "sgd"},
                             {"adam_beta1", "0.5"},
                             {"seed", "3"},
                             {"sampling", "epoch"},
                             {"precision", "bf16"},
                             {"dropout", "0.5"},
                             {"tokenizer", "byte"}})
    EXPECT_USER_ERROR(
        merge_for_resume(recorded, resolve({{"resume", "true"}, {option.first, option.second}}),
                         "runs/a"),
        "--resume cannot change --");
}

// What decides how the rest of a run learns may change, and what followed from it follows again.
TEST(TrainOptionRecords, ResumeMayChangeHowARunGoesOn) {
  TrainOptions recorded = resolve({{"lr", "1e-2"}, {"max_steps", "50"}});
  recorded.given.clear();
  const auto resumed = [&](KeyValues now) {
    now.emplace_back("resume", "runs/a");
    return merge_for_resume(recorded, resolve(now), "runs/a");
  };
  EXPECT_TRUE(changes_on_resume(recorded, resumed({})).empty());
  const TrainOptions slower = resumed({{"lr", "1e-4"}});
  EXPECT_EQ(slower.learning_rate, 1e-4);
  EXPECT_EQ(slower.min_lr, 1e-5) << "a tenth, as before";
  EXPECT_EQ(texts_of(changes_on_resume(recorded, slower)),
            (std::vector<std::string>{"--learning-rate 0.0001 (was 0.01)",
                                      "--min-lr 1e-05 (was 0.001)"}));
  const TrainOptions many = resumed({{"lr_scheduler_type", "linear"},
                                     {"warmup_steps", "3"},
                                     {"lr_decay_steps", "40"},
                                     {"weight_decay", "0.3"},
                                     {"max_grad_norm", "0"},
                                     {"eval_batches", "7"},
                                     {"load_best_model_at_end", "true"},
                                     {"logging_steps", "5"},
                                     {"save_steps", "6"},
                                     {"sample_steps", "8"}});
  EXPECT_EQ(many.min_lr, 0) << "of the linear schedule";
  EXPECT_EQ(many.learning_rate, 1e-2);
  EXPECT_EQ(changes_on_resume(recorded, many).size(), 11u);
  // A rate of its own stays; what the preset of the new command line has does not count.
  EXPECT_EQ(resumed({{"min_lr", "5e-3"}}).min_lr, 5e-3);
  recorded.min_lr = 3e-3;
  EXPECT_EQ(resumed({{"lr", "5e-3"}}).min_lr, 3e-3);
  EXPECT_USER_ERROR(resumed({{"lr", "1e-3"}}), "min-lr must not be above learning-rate");
  recorded = resolve({{"optim", "adafactor"}});
  recorded.given.clear();
  EXPECT_USER_ERROR(resumed({{"lr", "1e-3"}}), "the steps of this run are relative");
}

TEST(TrainOptionRecords, ResumeTakesTheCommandThatWasFittedEachTime) {
  const KeyValues command{{"fit", "true"}, {"batch_size", "12"}, {"eval_batches", "2"}};
  KeyValues again = command;
  again.emplace_back("resume", "true");
  TrainOptions recorded = resolve(command);
  recorded.given.clear();
  // As --fit cuts it.
  recorded.batch_size = recorded.eval_batch_size = 1;
  recorded.gradient_accumulation_steps = 12;
  recorded.eval_batches = 24;
  for (const KeyValues& part :
       {KeyValues{{"resume", "true"}}, again, again, KeyValues{{"resume", "true"}},
        KeyValues{{"resume", "true"}}, again}) {
    recorded = merge_for_resume(recorded, resolve(part), "runs/a");
    EXPECT_EQ(recorded.batch_size, 1);
    EXPECT_EQ(recorded.gradient_accumulation_steps, 12);
    EXPECT_EQ(recorded.eval_batch_size, 1);
    EXPECT_EQ(recorded.eval_batches, 24);
    recorded.given.clear();
  }
  // Other sizes of a step are still refused, and so is another cut of a run that nothing fits.
  again[1].second = "24";
  EXPECT_USER_ERROR(merge_for_resume(recorded, resolve(again), "runs/a"),
                    "--batch-size (1 in runs/a, now 24)");
  recorded.fit = "false";
  EXPECT_USER_ERROR(
      merge_for_resume(recorded, resolve({{"resume", "true"}, {"batch_size", "12"}}), "runs/a"),
      "--batch-size (1 in runs/a, now 12)");
}

}  // namespace
}  // namespace brrr::train
