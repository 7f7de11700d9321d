// Low-rank adapters from end to end: trained, resumed, used beside their base and merged into it.

#include <cmath>

#include "e2e/encoder_runs.h"
#include "formats/safetensors.h"

namespace brrr::test {
namespace {

class Adapters : public EncoderRuns {
 protected:
  void make_text_base(const std::string& name = "text-base") {
    ASSERT_EQ(run(small_run(name, {"--max-steps", "60"})), 0) << err_;
  }
  Options tuning(const std::string& name, Options more = {}) const {
    Options options{"train",
                    "--init-from",
                    path("text-base"),
                    "--text",
                    text_path(),
                    "--lora-r",
                    "4",
                    "--context",
                    "32",
                    "--batch-size",
                    "4",
                    "--max-steps",
                    "40",
                    "--save-steps",
                    "9",
                    "--eval-steps",
                    "20",
                    "--eval-batches",
                    "2",
                    "--threads",
                    "1",
                    "--output-dir",
                    path(name)};
    put_options(options, more);
    return options;
  }
  double loss_of(const Options& more) {
    Options options{"eval", "--text", text_path(), "--json"};
    options.insert(options.end(), more.begin(), more.end());
    EXPECT_EQ(run(options), 0) << err_;
    return Json::parse(out_).at("loss").get<double>();
  }
  /// A run with these options that is killed and resumed ends with the files of `whole`.
  void expect_same_after_kill(const std::string& whole, const Options& options) {
    const std::string killed = "killed-" + whole;
    ASSERT_EQ(run(tuning(killed, options), {"BRRR_FAULT=checkpoint.prune=kill"}), 128 + SIGKILL);
    ASSERT_EQ(run({"train", "--resume", path(killed)}), 0) << err_;
    EXPECT_EQ(loss_series(whole), loss_series(killed));
    EXPECT_TRUE(read_file(path(whole) / "adapter_model.safetensors") ==
                read_file(path(killed) / "adapter_model.safetensors"))
        << "the final weights differ";
  }
  void expect_refused(const Options& options, const std::string& reason) {
    EXPECT_NE(run(options), 0);
    EXPECT_NE(err_.find(reason), std::string::npos) << "expected: " << reason << "\ngot: " << err_;
  }
};

TEST_F(Adapters, AreTrainedUsedAndMerged) {
  make_text_base();
  ASSERT_EQ(run(tuning("tuned")), 0) << err_;
  EXPECT_NE(err_.find("adapter: "), std::string::npos) << err_;
  EXPECT_TRUE(fs::exists(path("tuned") / "adapter_model.safetensors"));
  EXPECT_FALSE(fs::exists(path("tuned") / "model.safetensors"));
  const std::string base = path("text-base"), tuned = path("tuned"), merged = path("merged");
  const double before = loss_of({"--model", base}), after = loss_of({"--model", tuned});
  EXPECT_LT(after, before);
  EXPECT_EQ(loss_of({"--model", base, "--adapter", tuned}), after);
  EXPECT_EQ(loss_of({"--model", base, "--adapter", tuned + "=0"}), before);
  ASSERT_EQ(run({"merge", tuned, "--output", merged}), 0) << err_;
  EXPECT_FALSE(fs::exists(fs::path(merged) / "adapter_config.json"));
  EXPECT_NEAR(loss_of({"--model", merged}), after, 1e-5 * after);
  // Two halves of one adapter are the whole.
  EXPECT_NEAR(loss_of({"--model", base, "--adapter", tuned + "=0.5", "--adapter", tuned + "=0.5"}),
              after, 1e-5 * after);
  ASSERT_EQ(run({"generate", "--model", tuned, "--max-new-tokens", "5"}), 0) << err_;
  ASSERT_EQ(run({"export", base, "--adapter", tuned, "--output", path("x.onnx")}), 0) << err_;
  ASSERT_EQ(run({"info", tuned}), 0) << err_;
  EXPECT_NE(out_.find("rank 4 on 4 linear layers"), std::string::npos) << out_;
  ASSERT_EQ(run({"plan", base, "--lora-r", "4", "--no-measure"}), 0) << err_;
  EXPECT_NE(out_.find("against full fine-tuning"), std::string::npos) << out_;
  ASSERT_EQ(run({"plan", tuned, "--no-measure"}), 0) << err_;
  EXPECT_NE(out_.find("rank 4 on 4 linear layers"), std::string::npos) << out_;
  // An adapter is trained further, by default at the learning rate of a new one.
  ASSERT_EQ(run(tuning("further", {"--init-from", tuned, "--lora-r", "off", "--max-steps", "3"})),
            0)
      << err_;
  EXPECT_TRUE(fs::exists(path("further") / "adapter_model.safetensors"));
  const auto recorded = [&](const fs::path& run_folder) {
    return Json::parse(read_file(run_folder / "train_config.json"));
  };
  ASSERT_EQ(run(tuning("floor", {"--init-from", tuned, "--lora-r", "off", "--max-steps", "2",
                                 "--min-lr", "1e-4"})),
            0)
      << err_;
  for (const char* name : {"learning_rate", "min_lr"})
    EXPECT_EQ(recorded(path("further"))[name], recorded(tuned)[name]) << name;
}

TEST_F(Adapters, GoOnWithTheSameBitsAfterAKill) {
  make_text_base();
  for (const char* precision : {"fp32", "bf16"}) {
    const Options options{"--precision", precision, "--lora-dropout", "0.1"};
    const std::string whole = std::string("whole-") + precision;
    ASSERT_EQ(run(tuning(whole, options)), 0) << err_;
    expect_same_after_kill(whole, options);
  }
}

// More of the program's code is resident when such a run is forecast, because its base was opened;
// that must not count twice. How many pages of code are resident in the end depends on the page
// cache, so the run that made the base is the measure.
TEST_F(Adapters, TakeTheMemoryOfTheirForecast) {
  const auto bytes_unused = [&] {
    const Json r = json();
    EXPECT_EQ(r["arena_bytes"], r["forecast_arena_bytes"]);
    const auto needed = r["needed_peak_bytes"].get<int64_t>(),
               forecast = r["forecast_needed_bytes"].get<int64_t>();
    EXPECT_LE(needed, forecast);
    return forecast - needed;
  };
  make_text_base();
  const int64_t of_base = bytes_unused();
  for (const char* batch : {"1", "8"}) {
    SCOPED_TRACE(batch);
    ASSERT_EQ(run(tuning(batch, {"--batch-size", batch, "--max-steps", "10", "--json"})), 0)
        << err_;
    EXPECT_LE(bytes_unused(), of_base + (512 << 10));
  }
}

// The best checkpoint was written before the base moved, the last one afterwards.
TEST_F(Adapters, AreResumedOverABaseThatHasMoved) {
  make_text_base();
  ASSERT_EQ(run(small_run("other-base", {"--max-steps", "1", "--seed", "5"})), 0) << err_;
  const Options options{"--load-best-model-at-end", "--eval-steps", "9"};
  ASSERT_EQ(run(tuning("whole", options)), 0) << err_;
  ASSERT_EQ(run(tuning("moved", options), {"BRRR_FAULT=checkpoint.prune=kill"}), 128 + SIGKILL);
  fs::create_directories(path("elsewhere"));
  fs::rename(path("text-base"), path("elsewhere") / "base");
  const std::string moved = path("moved").string(), base = (path("elsewhere") / "base").string();
  expect_refused({"train", "--resume", moved},
                 "if it has moved, name its new place by --init-from");
  expect_refused(
      {"train", "--resume", moved, "--init-from", path("other-base")},
      fmt::format("{}: its weights are not those that the adapter of {} was trained over",
                  path("other-base").string(), moved));
  expect_refused({"train", "--resume", path("other-base"), "--init-from", base},
                 "expected --resume or --init-from, not both");
  ASSERT_EQ(run({"train", "--resume", moved, "--init-from", base}), 0) << err_;
  EXPECT_EQ(loss_series("whole"), loss_series("moved"));
  EXPECT_TRUE(read_file(path("whole") / "adapter_model.safetensors") ==
              read_file(path("moved") / "adapter_model.safetensors"))
      << "the final weights differ";
  // The run has recorded the new place.
  ASSERT_EQ(run({"train", "--resume", moved, "--max-steps", "45"}), 0) << err_;
  EXPECT_GT(loss_of({moved}), 0);
}

// Other weights at the old place are named, too.
TEST_F(Adapters, AreNotResumedOverABaseThatHasChanged) {
  make_text_base();
  ASSERT_EQ(run(tuning("run"), {"BRRR_FAULT=checkpoint.prune=kill"}), 128 + SIGKILL);
  expect_refused({"train", "--resume", path("run"), "--init-from", path("run")},
                 "an adapter; with --resume name the model that it was trained over");
  ASSERT_EQ(run(small_run("text-base", {"--max-steps", "2", "--overwrite"})), 0) << err_;
  expect_refused(
      {"train", "--resume", path("run")},
      fmt::format("{}: its weights are not those that the adapter of {} was trained over",
                  path("text-base").string(), path("run").string()));
}

TEST_F(Adapters, OverABaseInIntegersTakeLessMemoryAndAreResumed) {
  ASSERT_EQ(run(small_run("text-base", {"--max-steps", "20", "--n-embd", "128"})), 0) << err_;
  const auto arena_of = [&] {
    const size_t at = err_.find("memory: arena ");
    return at == std::string::npos ? 0.0 : std::stod(err_.substr(at + 14));
  };
  ASSERT_EQ(run(tuning("floats", {"--max-steps", "2"})), 0) << err_;
  const double floats = arena_of();
  for (const char* bits : {"--load-in-4bit", "--load-in-8bit"}) {
    const std::string whole = std::string("whole") + bits;
    const Options options{bits, "--precision",     "bf16",  "--max-steps",
                          "20", "--rematerialize", "blocks"};
    ASSERT_EQ(run(tuning(whole, options)), 0) << err_;
    EXPECT_GT(arena_of(), 0);
    EXPECT_LT(arena_of(), floats);
    expect_same_after_kill(whole, options);
  }
  for (const char* type : {"nf4", "fp4"}) {
    const std::string whole = std::string("whole-") + type;
    const Options options{"--load-in-4bit", "--bnb_4bit_quant_type", type, "--precision",
                          "bf16",           "--max-steps",           "20"};
    ASSERT_EQ(run(tuning(whole, options)), 0) << err_;
    EXPECT_LT(arena_of(), floats);
    expect_same_after_kill(whole, options);
  }
  expect_refused(tuning("both", {"--load-in-4bit", "--load-in-8bit"}), "not both");
  expect_refused(tuning("type", {"--load-in-4bit-type", "nf4"}), "add --load-in-4bit");
  expect_refused(tuning("type", {"--load-in-4bit", "--load-in-4bit-type", "nf5"}), "nf4");
  // An adapter that is trained further over integers.
  const auto further = [&](const std::string& name, const Options& more) {
    Options options{"--init-from", path("floats"), "--lora-r", "off", "--max-steps", "2"};
    options.insert(options.end(), more.begin(), more.end());
    return tuning(name, options);
  };
  ASSERT_EQ(run(further("further", {"--load-in-4bit"})), 0) << err_;
  EXPECT_LT(arena_of(), floats);
  // Small matrices stay floats, which is said.
  ASSERT_EQ(run(small_run("text-base", {"--max-steps", "2", "--n-embd", "32", "--overwrite"})), 0)
      << err_;
  ASSERT_EQ(run(tuning("small", {"--load-in-4bit", "--max-steps", "2"})), 0) << err_;
  EXPECT_NE(err_.find("4 weights of the base are held as floats"), std::string::npos) << err_;
}

// Dropout draws by row, so that adapters see the same numbers on any rank.
TEST_F(Adapters, HaveTheSameBitsOnTwoRanks) {
  make_text_base();
  const Options options{"--deterministic-ranks", "2", "--lora-dropout", "0.1", "--max-steps", "9"};
  ASSERT_EQ(run(tuning("alone", options)), 0) << err_;
  for (const char* zero : {"0", "1", "3"}) {
    const std::string name = std::string("zero-") + zero;
    Options command = tuning(name, options);
    put_options(command, {"--zero", zero});
    command.insert(command.begin(), {"launch", "-n", "2"});
    ASSERT_EQ(run(command), 0) << err_;
    EXPECT_EQ(loss_series("alone"), loss_series(name));
    EXPECT_TRUE(read_file(path("alone") / "adapter_model.safetensors") ==
                read_file(path(name) / "adapter_model.safetensors"))
        << name;
  }
}

// PEFT's head keeps the values of the base where only the table of embeddings is saved.
TEST_F(Adapters, WriteATrainedTableForItsTiedHeadToo) {
  make_text_base();
  const std::string tuned = path("tuned"), merged = path("merged");
  ASSERT_EQ(run(tuning("tuned", {"--lora-modules-to-save", "wte"})), 0) << err_;
  const io::SafetensorsFile file(path("tuned") / "adapter_model.safetensors");
  const std::string root = "base_model.model.";
  EXPECT_TRUE(std::ranges::equal(file.get(root + "transformer.wte.weight").bytes,
                                 file.get(root + "lm_head.weight").bytes));
  const double loss = loss_of({"--model", tuned});
  ASSERT_EQ(run({"merge", tuned, "--output", merged}), 0) << err_;
  EXPECT_NEAR(loss_of({"--model", merged}), loss, 1e-5 * loss);
  EXPECT_EQ(
      Json::parse(read_file(path("merged") / "config.json")).value("tie_word_embeddings", true),
      true);
}

TEST_F(Adapters, BringTheHeadOfATask) {
  make_base();
  ASSERT_EQ(run(fine_tuning("classes", "classify", "classes.tsv",
                            {"--lora-r", "4", "--learning-rate", "1e-2"})),
            0)
      << err_;
  ASSERT_EQ(run({"eval", path("classes"), "--data", path("classes.tsv"), "--json"}), 0) << err_;
  const Json own = Json::parse(out_);
  EXPECT_GT(own.at("accuracy").get<double>(), 0.9);
  ASSERT_EQ(run({"eval", path("base"), "--adapter", path("classes"), "--data", path("classes.tsv"),
                 "--json"}),
            0)
      << err_;
  EXPECT_EQ(Json::parse(out_).at("accuracy"), own.at("accuracy"));
}

// Its low-rank matrices go on, and the head is a new one for the new labels.
TEST_F(Adapters, AreTrainedFurtherForAnotherTask) {
  make_base();
  ASSERT_EQ(run(fine_tuning("classes", "classify", "classes.tsv", {"--lora-r", "4"})), 0) << err_;
  std::string three;
  for (int i = 0; i < 240; ++i)
    three += fmt::format("{}\tline {} of {}\n", "abc"[i % 3], i,
                         i % 3 == 0   ? "words"
                         : i % 3 == 1 ? "a small text"
                                      : "that");
  put("three.tsv", three);
  const auto expect_goes_on = [&](const char* from, const char* to, const char* task,
                                  const char* file, const char* note, const char* score) {
    ASSERT_EQ(
        run(fine_tuning(to, task, file, {"--init-from", path(from), "--learning-rate", "1e-2"})), 0)
        << err_;
    EXPECT_NE(err_.find(note), std::string::npos) << err_;
    ASSERT_EQ(run({"eval", path(to), "--data", path(file), "--json"}), 0) << err_;
    EXPECT_GT(Json::parse(out_).at(score).get<double>(), 0.8) << to;
  };
  expect_goes_on("classes", "three", "classify", "three.tsv",
                 "the adapter was trained for classes of texts (bad, good); its low-rank matrices "
                 "are trained further for classes of texts (a, b, c)",
                 "accuracy");
  expect_goes_on("three", "tags", "tokens", "tags.txt", "are trained further for classes of tokens",
                 "accuracy");
  // The same labels: the head goes on, too.
  ASSERT_EQ(run(fine_tuning("same", "classify", "three.tsv",
                            {"--init-from", path("three"), "--max-steps", "1"})),
            0)
      << err_;
  EXPECT_EQ(err_.find("the adapter was trained for"), std::string::npos) << err_;
  // From a classifier to masked tokens and from a language model to classes.
  Options text = pretraining("masked", {"--init-from", path("classes"), "--max-steps", "2"});
  std::erase_if(text, [](const std::string& word) { return word == "wordpiece:120"; });
  std::erase(text, "--tokenizer");
  ASSERT_EQ(run(text), 0) << err_;
  EXPECT_NE(err_.find("are trained further for masked tokens"), std::string::npos) << err_;
}

TEST_F(Adapters, OfALanguageModelAreTrainedFurtherForClasses) {
  make_text_base();
  ASSERT_EQ(run(tuning("tuned", {"--max-steps", "5"})), 0) << err_;
  ASSERT_EQ(run(fine_tuning("classes", "classify", "classes.tsv",
                            {"--init-from", path("tuned"), "--learning-rate", "1e-2"})),
            0)
      << err_;
  EXPECT_NE(err_.find("are trained further for classes of texts (bad, good)"), std::string::npos)
      << err_;
  ASSERT_EQ(run({"eval", path("classes"), "--data", path("classes.tsv"), "--json"}), 0) << err_;
  EXPECT_GT(Json::parse(out_).at("accuracy").get<double>(), 0.8);
}

TEST_F(Adapters, AreChosenByPrompt) {
  make_text_base();
  ASSERT_EQ(run(tuning("poet")), 0) << err_;
  ASSERT_EQ(run(tuning("lawyer", {"--lora-r", "3", "--lora-targets", "c_fc", "--seed", "5",
                                  "--learning-rate", "2e-2"})),
            0)
      << err_;
  const fs::path prompts = path("prompts.jsonl");
  int code = 0;
  const auto answers = [&](const std::string& lines, const Options& more) {
    write_file_atomically(prompts, lines);
    Options options{
        "generate",      "--model", path("text-base"),  "--prompts", prompts,     "--ordered",
        "--temperature", "0",       "--max-new-tokens", "20",        "--logprobs"};
    options.insert(options.end(), more.begin(), more.end());
    code = run(options);
    std::vector<Json> list;
    size_t at = 0;
    for (size_t end = 0; (end = out_.find('\n', at)) != std::string::npos; at = end + 1)
      list.push_back(Json::parse(out_.substr(at, end - at)));
    return list;
  };
  const std::string poet = path("poet"), lawyer = path("lawyer");
  const std::string plain = "{\"prompt\": \"the \"}\n";
  const std::string named =
      "{\"prompt\": \"the \", \"adapter\": \"poet\"}\n"
      "{\"prompt\": \"the \", \"adapter\": \"judge\"}\n"
      "{\"prompt\": \"the \", \"adapter\": null}\n" +
      plain;
  const auto mixed = answers(named, {"--adapter", poet, "--adapter", "judge=" + lawyer});
  ASSERT_EQ(code, 0) << err_;
  ASSERT_EQ(mixed.size(), 4u);
  EXPECT_NE(err_.find("judge: 1 text"), std::string::npos) << err_;
  EXPECT_NE(err_.find("no adapter: 1 text"), std::string::npos) << err_;
  EXPECT_NE(err_.find("all adapters: 1 text"), std::string::npos) << err_;
  const auto expect_same_text = [&](const Json& got, const Options& alone) {
    const auto expected = answers(plain, alone);
    ASSERT_EQ(code, 0) << err_;
    EXPECT_FALSE(expected[0].contains("adapter"));
    EXPECT_EQ(got.at("ids"), expected[0].at("ids"));
    for (size_t i = 0; i < got.at("logprobs").size(); ++i)
      EXPECT_NEAR(got["logprobs"][i].get<double>(), expected[0]["logprobs"][i].get<double>(), 1e-5);
  };
  EXPECT_EQ(mixed[0].at("adapter"), "poet");
  EXPECT_EQ(mixed[1].at("adapter"), "judge");
  EXPECT_TRUE(mixed[2].at("adapter").is_null());
  EXPECT_FALSE(mixed[3].contains("adapter"));
  EXPECT_NE(mixed[2].at("logprobs"), mixed[3].at("logprobs"));
  EXPECT_NE(mixed[0].at("logprobs"), mixed[1].at("logprobs"));
  expect_same_text(mixed[0], {"--adapter", poet});
  expect_same_text(mixed[1], {"--adapter", lawyer});
  expect_same_text(mixed[2], {});
  expect_same_text(mixed[3], {"--adapter", poet, "--adapter", lawyer});
  // No line depends on its neighbours: each has the bits that it has in a file of its own.
  for (const char* precision : {"fp32", "bf16"}) {
    const Options both{"--precision", precision, "--adapter", poet, "--adapter", "judge=" + lawyer};
    const auto together = answers(named, both);
    ASSERT_EQ(together.size(), 4u) << err_;
    size_t begin = 0;
    for (const Json& text : together) {
      const size_t end = named.find('\n', begin) + 1;
      const auto alone = answers(named.substr(begin, end - begin), both);
      ASSERT_EQ(alone.size(), 1u) << err_;
      EXPECT_EQ(alone[0].at("ids"), text.at("ids"));
      EXPECT_EQ(alone[0].at("logprobs"), text.at("logprobs"));
      begin = end;
    }
  }
  // A factor of the scale.
  const auto half =
      answers(named, {"--adapter", poet + "=0.5", "--adapter", "judge=" + lawyer + "=0"});
  ASSERT_EQ(code, 0) << err_;
  EXPECT_EQ(half[1].at("logprobs"), half[2].at("logprobs"));
  expect_same_text(half[0], {"--adapter", poet + "=0.5"});

  // Lines that name no adapter that there is.
  const auto some = answers(
      "{\"prompt\": \"a\", \"adapter\": \"poem\"}\n"
      "{\"prompt\": \"a\", \"adapter\": 3}\n"
      "{\"prompt\": \"a\", \"adapter\": \"poet\"}\n",
      {"--adapter", poet, "--adapter", lawyer});
  EXPECT_EQ(code, 1);
  EXPECT_EQ(some.size(), 1u);
  EXPECT_NE(err_.find("line 1: \"adapter\": there is no 'poem'; there are: poet, lawyer"),
            std::string::npos)
      << err_;
  EXPECT_NE(
      err_.find("line 2: \"adapter\" must be the name of an adapter or null; found the number 3"),
      std::string::npos)
      << err_;
  EXPECT_TRUE(answers(named, {}).size() == 2u && code == 1) << err_;
  EXPECT_NE(err_.find("there is none; name its folder by --adapter FOLDER"), std::string::npos);
  EXPECT_EQ(answers(named, {"--adapter", poet, "--adapter", "poet=" + lawyer}).size(), 2u);
  EXPECT_EQ(code, 1);
  EXPECT_NE(err_.find("line 1: \"adapter\": two are called 'poet'"), std::string::npos) << err_;
  ASSERT_EQ(run(tuning("saved", {"--max-steps", "2", "--lora-modules-to-save", "wte"})), 0) << err_;
  EXPECT_EQ(answers(named, {"--adapter", path("saved"), "--adapter", poet}).size(), 1u);
  EXPECT_EQ(code, 1);
  EXPECT_NE(
      err_.find(
          "line 3: \"adapter\": the adapter saved has a trained copy of transformer.wte.weight"),
      std::string::npos)
      << err_;
}

TEST_F(Adapters, AreRefusedByName) {
  make_text_base();
  expect_refused(tuning("r", {"--lora-r", "0"}), "lora-r");
  expect_refused(tuning("r", {"--lora-r", "33"}), "expected a rank from 1 to 32");
  expect_refused(tuning("r", {"--lora-alpha", "0"}), "lora-alpha");
  expect_refused(tuning("r", {"--lora-targets", "q_proj"}), "c_attn, c_proj, c_fc");
  expect_refused(tuning("r", {"--lora-targets", "c_attm"}), "did you mean 'c_attn'?");
  expect_refused(tuning("r", {"--lora-modules-to-save", "lm_head"}), "transformer.wte");
  expect_refused(tuning("r", {"--lora-modules-to-save", "nothing"}), "has no module 'nothing'");
  expect_refused(tuning("r", {"--freeze", "embed"}), "leave --freeze embed out");
  expect_refused(small_run("r", {"--lora-r", "4"}), "needs --init-from");
  expect_refused(small_run("r", {"--lora-dropout", "0.1"}), "needs --lora-r");
  Options full = tuning("r", {"--load-in-4bit"});
  full.erase(std::ranges::find(full, "--lora-r"), std::ranges::find(full, "--lora-r") + 2);
  expect_refused(full, "--load-in-4bit holds the model below an adapter in integers");
  ASSERT_EQ(run(tuning("tuned", {"--max-steps", "2", "--lora-modules-to-save", "wte"})), 0) << err_;
  const std::string base = path("text-base"), tuned = path("tuned");
  expect_refused(tuning("r", {"--init-from", tuned}), "is an adapter already");
  expect_refused(
      {"eval", "--text", text_path(), "--model", base, "--adapter", tuned, "--adapter", tuned},
      "only one can take its place");
  expect_refused({"eval", "--text", text_path(), "--model", base, "--adapter", base},
                 "a model, not an adapter");
  expect_refused({"quantize", tuned, "--output", path("q")}, "merge it into its model first");
  // Another base: of another width, and of the same sizes with other weights.
  ASSERT_EQ(run(small_run("wide", {"--max-steps", "2", "--n-embd", "64"})), 0) << err_;
  ASSERT_EQ(run(small_run("other", {"--max-steps", "2", "--seed", "7"})), 0) << err_;
  expect_refused({"eval", "--text", text_path(), "--model", path("wide"), "--adapter", tuned},
                 "does not belong to this model");
  ASSERT_EQ(run(small_run("llama", {"--max-steps", "2", "--architecture", "llama"})), 0) << err_;
  expect_refused({"eval", "--text", text_path(), "--model", path("llama"), "--adapter", tuned},
                 "has none of its 4 layers, such as transformer.h.0.attn.c_attn: the adapter "
                 "belongs to another model");
  ASSERT_EQ(run({"eval", "--text", text_path(), "--model", path("other"), "--adapter", tuned}), 0)
      << err_;
  EXPECT_NE(err_.find("was trained over"), std::string::npos) << err_;
}

}  // namespace
}  // namespace brrr::test
