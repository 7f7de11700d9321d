// The main job, as a user runs it.

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "e2e/run.h"
#include "folders/checkpoint.h"
#include "folders/model_folder.h"
#include "passes/pipeline.h"
#include "support/long_proof.h"

namespace brrr::test {
namespace {

using Train = EndToEnd;

TEST_F(Train, LeavesACompleteRunFolder) {
  ASSERT_EQ(run(small_run("run")), 0) << err_;
  const nlohmann::json j = json();
  for (const char* key :
       {"run_dir", "steps", "train_loss", "val_loss", "seconds", "tokens_per_second",
        "first_step_seconds", "arena_bytes", "process_peak_bytes"})
    EXPECT_TRUE(j.contains(key)) << key;
  EXPECT_EQ(j["steps"], 300);
  EXPECT_LT(j["val_loss"].get<double>(), 2.5) << "it did not learn";
  EXPECT_EQ(j["arena_bytes"], j["forecast_arena_bytes"]);
  EXPECT_NE(err_.find("s with start, evaluations and saving; "), std::string::npos) << err_;
  EXPECT_NE(err_.find(" tokens/s while training, "), std::string::npos) << err_;
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json", "log.jsonl",
                           "loss.svg", "train_config.json", "tensorboard"})
    EXPECT_TRUE(fs::exists(path("run") / name)) << name;
  const io::ModelFolder model = io::open_model(path("run"));
  EXPECT_EQ(model.definition->sizes().width, 32);
}

// The steps whose lines stand on the screen.
std::vector<int> lines_of_steps(const std::string& err) {
  std::vector<int> steps;
  std::istringstream text(err);
  for (std::string line; std::getline(text, line);)
    if (line.starts_with("step ") && line.find("/60 | loss ") != std::string::npos)
      steps.push_back(std::stoi(line.substr(5)));
  return steps;
}

TEST_F(Train, TheScreenShowsWhatWasAskedFor) {
  const auto train = [&](std::vector<std::string> more) {
    put_options(more, {"--max-steps", "60", "--overwrite"});
    return run(small_run("run", more));
  };
  ASSERT_EQ(train({"--logging-steps", "25"}), 0) << err_;
  EXPECT_EQ(lines_of_steps(err_), (std::vector<int>{25, 50})) << err_;
  EXPECT_NE(err_.find("note: the warm-up of 100 steps does not end within the run of 60 steps: the "
                      "learning rate reaches 0.00"),
            std::string::npos)
      << err_;
  EXPECT_NE(err_.find(" a step and "), std::string::npos) << err_;
  EXPECT_NE(err_.find("; on average "), std::string::npos) << err_;
  EXPECT_EQ(err_.find("eta 0:0"), err_.rfind("eta 0:00")) << "sixty fast steps need no estimate";
  const nlohmann::json j = json();
  EXPECT_GT(j["recent_tokens_per_second"], 0);
  EXPECT_GT(j["recent_step_ms"], 0);
  ASSERT_EQ(train({"--logging-steps", "0", "--warmup-steps", "0.1"}), 0) << err_;
  EXPECT_EQ(lines_of_steps(err_), std::vector<int>()) << err_;
  EXPECT_EQ(err_.find("warm-up"), std::string::npos) << err_;
  ASSERT_EQ(train({}), 0) << err_;
  EXPECT_EQ(lines_of_steps(err_).size(), 60u) << "of so short a run every step";
}

TEST_F(Train, TheLogSaysOnWhatItRanAndTheFolderWhatItWrites) {
  ASSERT_EQ(run(small_run("run", {"--max-steps", "20", "--samples", "2"})), 0) << err_;
  const auto log = io::read_jsonl(path("run") / "log.jsonl");
  ASSERT_FALSE(log.empty());
  EXPECT_EQ(log[0]["step"], 0);
  EXPECT_GT(log[0]["parameters"], 0);
  EXPECT_NE(log[0]["machine"].get<std::string>().find(", 1 thread of "), std::string::npos);
  double seconds = 0;
  for (const nlohmann::json& record : log) {
    if (!record.contains("loss")) continue;
    EXPECT_EQ(record["tokens"], record["step"].get<int64_t>() * 4 * 32);
    EXPECT_GT(record["seconds"], seconds);
    seconds = record["seconds"];
  }
  const auto samples = nlohmann::json::parse(read_file(path("run") / "samples.json"));
  EXPECT_EQ(samples["step"], 20);
  EXPECT_EQ(samples["samples"].size(), 2u);
}

TEST_F(Train, ThreadsDoNotChangeTheBits) {
  ASSERT_EQ(run(small_run("one", {"--threads", "1", "--max-steps", "60"})), 0) << err_;
  ASSERT_EQ(run(small_run("two", {"--threads", "2", "--max-steps", "60"})), 0) << err_;
  EXPECT_EQ(loss_series("one"), loss_series("two"));
}

// Everything that a user does, with each optional pass left out: the losses stay, but for the order
// of roundings.
TEST_F(Train, PassesCanBeDisabled) {
  for (const char* precision : {"fp32", "bf16"}) {
    const std::vector<std::string> options{"--max-steps", "30", "--precision", precision};
    auto losses = [&](const std::string& name) {
      std::vector<double> list;
      for (const nlohmann::json& record : io::read_jsonl(path(name) / "log.jsonl"))
        if (record.contains("loss")) list.push_back(record["loss"].get<double>());
      return list;
    };
    const std::string all = std::string("all-") + precision;
    ASSERT_EQ(run(small_run(all, options)), 0) << err_;
    const auto expected = losses(all);
    ASSERT_EQ(expected.size(), 30u);
    const double tolerance = precision == std::string("fp32") ? 1e-4 : 1e-2;
    for (const std::string& pass : sampled(optional_passes(), 5, precision)) {
      SCOPED_TRACE(fmt::format("{} without {}", precision, pass));
      const std::string name = fmt::format("{}-{}", pass, precision);
      const std::vector<std::string> environment{"BRRR_DISABLE_PASS=" + pass};
      ASSERT_EQ(run(small_run(name, options), environment), 0) << err_;
      const auto got = losses(name);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], tolerance) << i;
      ASSERT_EQ(run({"eval", "--model", path(name).string(), "--text", text_path().string(),
                     "--precision", precision, "--json"},
                    environment),
                0)
          << err_;
      ASSERT_EQ(run({"generate", "--model", path(name).string(), "--max-new-tokens", "40",
                     "--precision", precision, "--json"},
                    environment),
                0)
          << err_;
      EXPECT_EQ(json()["tokens"], 40);
    }
  }
  ASSERT_EQ(run(small_run("bad", {"--disable-pass", "fly"})), 2);
  EXPECT_NE(err_.find("fly"), std::string::npos);
}

// Every optional pass off at once: node by node.
TEST_F(Train, CompileIsASwitch) {
  ASSERT_EQ(run(small_run("on", {"--max-steps", "30"})), 0) << err_;
  const double on = json()["train_loss"].get<double>();
  ASSERT_EQ(run(small_run("off", {"--max-steps", "30", "--no-compile"})), 0) << err_;
  EXPECT_NEAR(json()["train_loss"].get<double>(), on, 1e-4);
}

TEST_F(Train, SixteenBitsLearnAsWell) {
  ASSERT_EQ(run(small_run("fp32")), 0) << err_;
  const double expected = json()["val_loss"].get<double>();
  for (const char* precision : {"bf16", "fp16"}) {
    ASSERT_EQ(run(small_run(precision, {"--precision", precision})), 0) << err_;
    EXPECT_NEAR(json()["val_loss"].get<double>(), expected, 0.05) << precision;
  }
}

TEST_F(Train, EveryOptimizerLearns) {
  const std::vector<std::vector<std::string>> rows = {{"adamw_8bit"},
                                                      {"sgd"},
                                                      {"lion"},
                                                      {"adafactor"},
                                                      {"adafactor", "--learning-rate", "1e-3"},
                                                      {"muon"},
                                                      {"adamw", "--param-dtype", "bf16"},
                                                      {"muon", "--precision", "bf16"}};
  for (const std::vector<std::string>& options : sampled(rows, 4, "optimizers")) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(options, " ")));
    std::vector<std::string> more{"--overwrite", "--optim"};
    put_options(more, options);
    ASSERT_EQ(run(small_run("run", more)), 0) << err_;
    EXPECT_LT(json()["val_loss"].get<double>(), 2.6) << "it did not learn";
  }
}

// Weights that one step has thrown away show in the next validation loss, and only there.
class Diverged : public EndToEnd {
 protected:
  std::vector<std::string> diverging(const std::string& name,
                                     const std::vector<std::string>& more) const {
    std::vector<std::string> args =
        small_run(name, {"--optim", "sgd", "--learning-rate", "1e30", "--max-grad-norm", "0",
                         "--warmup-steps", "0", "--dropout", "0"});
    put_options(args, more);
    return args;
  }
  bool says(const std::string& part) const { return err_.find(part) != std::string::npos; }
  std::vector<int64_t> checkpoints(const std::string& name) const {
    std::vector<int64_t> steps;
    for (const io::Checkpoint& c : io::list_checkpoints(path(name))) steps.push_back(c.step);
    return steps;
  }
};

TEST_F(Diverged, AValidationLossThatIsNoNumberEndsTheRun) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--max-steps", "1"},  // the evaluation at the end
        {"--max-steps", "10", "--eval-steps", "1", "--save-steps", "1"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(more, " ")));
    fs::remove_all(path("run"));
    EXPECT_EQ(run(diverging("run", more)), 1);
    EXPECT_TRUE(says("step 1: the validation loss is not a number; it began in ")) << err_;
    EXPECT_TRUE(says("No checkpoint was written before it")) << err_;
    EXPECT_FALSE(says("nan")) << err_;
    EXPECT_FALSE(fs::exists(path("run") / "model.safetensors"));
    EXPECT_TRUE(checkpoints("run").empty());
    const auto records = io::read_jsonl(path("run") / "log.jsonl");
    EXPECT_EQ(records.back().value("health", ""), "non_finite") << records.back();
    EXPECT_NE(records.back()["text"].get<std::string>().find(" at "), std::string::npos)
        << "the layer: " << records.back();
    ASSERT_EQ(run({"report", path("run").string(), "--json"}), 0) << err_;
    const nlohmann::json r = json()["runs"][0];
    EXPECT_EQ(r["status"], "failed");
    EXPECT_TRUE(r["val_loss"].is_null()) << r["val_loss"];
    EXPECT_EQ(r["best_step"], 0);
    ASSERT_EQ(run({"report", path("run").string()}), 0) << err_;
    EXPECT_NE(read_file(path("run") / "report.html").find(">NaN<"), std::string::npos);
  }
}

TEST_F(Diverged, OnlyACheckpointOfFiniteLossIsRecommended) {
  const std::vector<std::string> unseen{"--eval-steps", "0", "--save-steps", "1"};
  EXPECT_EQ(run(diverging("none", unseen)), 1);
  EXPECT_TRUE(says("step 2: the loss is not a number")) << err_;
  EXPECT_EQ(checkpoints("none"), (std::vector<int64_t>{1})) << "nobody could know";
  EXPECT_TRUE(says("No checkpoint before it is known to be good")) << err_;

  // After steps that were well, the one before the last is; and it is one to go on from.
  std::vector<std::string> slower{"--learning-rate",    "1e4", "--warmup-steps", "20",
                                  "--save-total-limit", "0"};
  put_options(slower, unseen);
  EXPECT_EQ(run(diverging("run", slower)), 1);
  const std::vector<int64_t> all = checkpoints("run");
  ASSERT_GE(all.size(), 2u) << err_;
  const int64_t bad = all.back() + 1;
  EXPECT_TRUE(says(fmt::format("step {}: the loss is not a number", bad))) << err_;
  const std::string good = (path("run") / fmt::format("checkpoint-{:06}", bad - 2)).string();
  const std::string line = "The newest checkpoint whose loss was still finite is " + good + "\n";
  EXPECT_TRUE(says(line)) << err_;
  EXPECT_EQ(run({"train", "--resume", good}), 1);
  EXPECT_TRUE(says("resumed at step")) << err_;
  EXPECT_TRUE(says(fmt::format("step {}: the loss is not a number", bad))) << err_;
  EXPECT_TRUE(says(line)) << err_;
}

// A scale that is far too large: the first steps overflow and are skipped, the run recovers.
TEST_F(Train, Fp16RecoversFromOverflows) {
  ASSERT_EQ(run(small_run("run", {"--precision", "fp16", "--init-loss-scale", "1e30"})), 0) << err_;
  const nlohmann::json j = json();
  EXPECT_GT(j["skipped_steps"].get<int>(), 20);
  EXPECT_LT(j["skipped_steps"].get<int>(), 120);
  EXPECT_LT(j["val_loss"].get<double>(), 2.6) << "it did not learn";
  EXPECT_NE(err_.find("overflowed at loss scale 1e+30: skipped, the scale is halved"),
            std::string::npos)
      << err_;
  // Every record says how it stands.
  nlohmann::json last;
  double before = 0;
  for (const nlohmann::json& record : io::read_jsonl(path("run") / "log.jsonl")) {
    if (!record.contains("loss")) continue;
    ASSERT_TRUE(record.contains("loss_scale") && record.contains("skipped_steps")) << record;
    EXPECT_GE(record["skipped_steps"].get<double>(), before);
    before = record["skipped_steps"].get<double>();
    last = record;
  }
  EXPECT_EQ(last["skipped_steps"].get<int>(), j["skipped_steps"].get<int>());
  EXPECT_LT(last["loss_scale"].get<double>(), 1e30);
  std::string events;
  for (const auto& entry : fs::directory_iterator(path("run") / "tensorboard"))
    events += read_file(entry.path());
  for (const char* tag : {"train/loss_scale", "train/skipped_steps"})
    EXPECT_NE(events.find(tag), std::string::npos) << tag;
  ASSERT_EQ(run({"report", path("run").string(), "--json"}), 0) << err_;
  EXPECT_EQ(json()["runs"][0]["skipped_steps"].get<int>(), j["skipped_steps"].get<int>());
}

// Whoever reads a pipe sees what a run is doing before its first step. An error in a small file
// stands alone all the same (BadInputIsOneLine).
TEST_F(Train, EveryPhaseBeforeTheFirstStepHasALine) {
  std::string text;
  while (text.size() < size_t{5} << 20) text += read_file(text_path());
  write_file_atomically(path("large.txt"), text);
  ASSERT_EQ(run(small_run("run", {"--text", path("large.txt").string(), "--max-steps", "1"})), 0)
      << err_;
  size_t at = 0;
  for (const char* line : {"reading and tokenising 5.", "data: ", "compiling the model\n",
                           "memory: ", "allocating memory and initialising the weights\n",
                           "evaluating before the first step\n", "step 0: validation loss "}) {
    const size_t next = err_.find(line, at);
    ASSERT_NE(next, std::string::npos) << line << " in " << err_;
    at = next;
  }
  ASSERT_EQ(run({"train", "--resume", path("run").string(), "--max-steps", "2"}), 0) << err_;
  EXPECT_NE(err_.find("allocating memory and loading the checkpoint\n"), std::string::npos) << err_;
}

// However long a run is, every evaluation of it is on the same tokens, the last one among them.
TEST_F(Train, EveryEvaluationIsOnTheSameTokens) {
  std::set<std::string> sets;
  const auto evaluations = [&](const std::string& name, std::vector<std::string> more) {
    put_options(more, {"--samples", "0"});
    EXPECT_EQ(run(small_run(name, more)), 0) << err_;
    std::vector<int64_t> steps;
    nlohmann::json last;
    for (const nlohmann::json& record : io::read_jsonl(path(name) / "log.jsonl")) {
      if (!record.contains("val_loss")) continue;
      steps.push_back(record["step"]);
      sets.insert(record["val_set"]);
      last = record;
    }
    EXPECT_EQ(json()["val_loss"], last["val_loss"]) << "the terminal and the log";
    EXPECT_EQ(json()["val_tokens"], last["val_tokens"]);
    return std::pair(steps, last["val_tokens"].get<int64_t>());
  };
  using Found = std::pair<std::vector<int64_t>, int64_t>;
  const int64_t tokens = int64_t{3} * 4 * 32;
  const std::vector<std::string> three{"--eval-batches", "3"};
  const auto with = [&](std::vector<std::string> more) {
    put_options(more, three);
    return more;
  };
  EXPECT_EQ(evaluations("short", with({"--max-steps", "25", "--eval-steps", "10"})),
            (Found{{0, 10, 20, 25}, tokens}));
  EXPECT_EQ(evaluations("long", with({"--max-steps", "120", "--eval-steps", "0"})),
            (Found{{120}, tokens}));
  // As many rows, cut into other batches.
  EXPECT_EQ(evaluations("cut", {"--max-steps", "2", "--eval-steps", "0", "--eval-batches", "6",
                                "--eval-batch-size", "2"}),
            (Found{{2}, tokens}));
  EXPECT_EQ(sets.size(), 1u);
  ASSERT_EQ(run({"report", path("short").string(), path("long").string(), "--json"}), 0);
  EXPECT_TRUE(json()["evaluation_note"].is_null());
  evaluations("more", {"--max-steps", "2", "--eval-batches", "4"});
  evaluations("seed", with({"--max-steps", "2", "--seed", "3"}));
  EXPECT_EQ(sets.size(), 3u);
  ASSERT_EQ(run({"report", path("short").string(), path("more").string(), "--json"}), 0);
  const std::string note = json()["evaluation_note"];
  EXPECT_NE(note.find("short on 384 tokens"), std::string::npos) << note;
  EXPECT_NE(err_.find(note), std::string::npos) << err_;
  // With other tokens from a step on, the best evaluation is one of those that can be compared.
  ASSERT_EQ(run({"train", "--resume", path("short").string(), "--max-steps", "30", "--eval-batches",
                 "1", "--json"}),
            0)
      << err_;
  EXPECT_NE(err_.find("evaluations are on other tokens than those up to step "), std::string::npos)
      << err_;
  EXPECT_EQ(json()["best_step"], 30);
}

// A better last step is the best, though no evaluation was due there.
TEST_F(Train, TheLastStepMayBeTheBest) {
  ASSERT_EQ(run(small_run("run", {"--max-steps", "70", "--eval-steps", "50",
                                  "--load-best-model-at-end", "--warmup-steps", "0"})),
            0)
      << err_;
  const nlohmann::json j = json();
  std::map<int64_t, double> losses;
  for (const nlohmann::json& record : io::read_jsonl(path("run") / "log.jsonl"))
    if (record.contains("val_loss")) losses[record["step"]] = record["val_loss"];
  ASSERT_EQ(losses.size(), 3u);
  ASSERT_LT(losses[70], losses[50]) << "the run learnt nothing: choose another";
  EXPECT_EQ(j["best_step"], 70);
  EXPECT_EQ(j["val_loss"], losses[70]);
  EXPECT_EQ(j["ends_with_best"], false) << "the last weights are the best";
}

TEST_F(Train, EvaluatesWhatItTrained) {
  ASSERT_EQ(run(small_run("run", {"--eval-batches", "0", "--eval-steps", "0"})), 0) << err_;
  const double val_loss = json()["val_loss"].get<double>();
  // Whether or not an evaluation is due at the last step, there is one.
  ASSERT_EQ(run(small_run("whole", {"--eval-batches", "0", "--eval-steps", "300"})), 0) << err_;
  EXPECT_EQ(json()["val_loss"].get<double>(), val_loss);
  const std::string text = read_file(text_path());
  write_file_atomically(path("val.txt"),
                        text.substr(static_cast<size_t>(static_cast<double>(text.size()) * 0.9)));
  ASSERT_EQ(
      run({"eval", "--model", path("run").string(), "--text", path("val.txt").string(), "--json"}),
      0)
      << err_;
  EXPECT_NEAR(json()["loss"].get<double>(), val_loss, 1e-5);
  EXPECT_NEAR(json()["perplexity"].get<double>(), std::exp(json()["loss"].get<double>()), 1e-9);
}

TEST_F(Train, GenerationWithTheCacheEqualsGenerationWithoutIt) {
  ASSERT_EQ(run(small_run("run")), 0) << err_;
  // Far beyond the context of 32, greedy and sampled.
  for (const char* temperature : {"0", "1"}) {
    std::string texts[2];
    for (int cache = 0; cache < 2; ++cache) {
      ASSERT_EQ(run({"generate", "--model", path("run").string(), "--prompt", "line 4",
                     "--max-new-tokens", "200", "--temperature", temperature, "--json",
                     cache ? "--cache" : "--no-cache"}),
                0)
          << err_;
      texts[cache] = json()["text"].get<std::string>();
      EXPECT_EQ(json()["tokens"], 200);
    }
    EXPECT_EQ(texts[0], texts[1]) << "temperature " << temperature;
  }
}

// What is forgotten beyond the context is said once, however many texts there are.
TEST_F(Train, GenerationBeyondTheContextSaysSo) {
  ASSERT_EQ(run(small_run("run", {"--max-steps", "2", "--tokenizer", "byte"})), 0) << err_;
  const auto notes = [&](const std::string& tokens) {
    EXPECT_EQ(run({"generate", "--model", path("run").string(), "--prompt", "line", "--num-samples",
                   "3", "--max-new-tokens", tokens}),
              0)
        << err_;
    const size_t first = err_.find("the older half was forgotten");
    return first == std::string::npos ? 0 : first == err_.rfind("the older half was") ? 1 : 2;
  };
  EXPECT_EQ(notes("29"), 0) << "4 + 29 tokens: the last one is not read";
  EXPECT_EQ(notes("30"), 1);
  EXPECT_EQ(notes("100"), 1);
  const auto with_context = [&](const char* context) {
    return run({"generate", "--model", path("run").string(), "--prompt", "line", "-n", "14", "-c",
                context});
  };
  EXPECT_EQ(with_context("17"), 0) << err_;
  EXPECT_EQ(err_.find("forgotten"), std::string::npos) << err_;
  EXPECT_EQ(with_context("16"), 0) << err_;
  EXPECT_NE(err_.find("longer than the context of 16 tokens"), std::string::npos) << err_;
  EXPECT_EQ(with_context("1"), 2);
  EXPECT_NE(err_.find("--context 1 leaves no room for a new token"), std::string::npos) << err_;
  EXPECT_EQ(with_context("99"), 2);
  EXPECT_NE(err_.find("--context 99: the model's context is 32 tokens"), std::string::npos) << err_;
}

TEST_F(Train, BadInputIsOneLine) {
  struct Case {
    std::vector<std::string> args;
    int code;
    const char* part;
  };
  write_file_atomically(path("empty.txt"), "");
  write_file_atomically(path("binary.txt"), std::string("abc\0def", 7));
  write_file_atomically(path("latin1.txt"), "caf\xe9 au lait, caf\xe9 noir\n");
  write_file_atomically(path("short.txt"), "too short\n");
  fs::create_directory(path("nothing"));
  const std::string run_dir = path("r").string();
  const Case cases[] = {
      {{"train", "--text", path("absent.txt").string(), "--output-dir", run_dir}, 1, "absent.txt"},
      {{"train", "--text", path("empty.txt").string(), "--output-dir", run_dir}, 1, "empty"},
      {{"train", "--text", path("binary.txt").string(), "--output-dir", run_dir}, 1, "binary.txt"},
      {{"train", "--text", path("latin1.txt").string(), "--output-dir", run_dir}, 1, "UTF-8"},
      {{"train", "--text", path("short.txt").string(), "--output-dir", run_dir}, 1, "context"},
      {{"train", "--resume", path("absent").string()}, 1, "absent"},
      {{"train", "--resume", path("nothing").string()}, 1, "no checkpoint"},
      {{"train", "--n-embd", "33", "--n-head", "2", "--output-dir", run_dir}, 2, "n-embd"},
      {{"generate", "--model", path("absent").string()}, 1, "absent"},
      {{"generate", "--model", path("nothing").string()}, 1, "config.json"},
      {{"eval", "--model", path("nothing").string(), "--text", text_path().string()},
       1,
       "config.json"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(run(c.args), c.code) << c.args[2] << "\n" << err_;
    EXPECT_NE(err_.find(c.part), std::string::npos) << "expected '" << c.part << "', got: " << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
  }
  EXPECT_FALSE(fs::exists(path("r") / "log.jsonl"));
}

TEST_F(Train, DamagedModelsAreRefused) {
  ASSERT_EQ(run(small_run("run", {"--max-steps", "20"})), 0) << err_;
  const std::string model = path("run").string();
  const std::string weights = read_file(path("run") / "model.safetensors");
  auto generate = [&] { return run({"generate", "--model", model, "--prompt", "line"}); };
  ASSERT_EQ(generate(), 0) << err_;
  EXPECT_EQ(run({"generate", "--model", model, "--prompt", ""}), 2);
  EXPECT_NE(err_.find("has no begin-of-text token"), std::string::npos) << err_;
  write_file_atomically(path("run") / "model.safetensors", weights.substr(0, weights.size() / 2));
  EXPECT_EQ(generate(), 1);
  EXPECT_NE(err_.find("model.safetensors"), std::string::npos) << err_;
  write_file_atomically(path("run") / "model.safetensors", weights);
  std::string config = read_file(path("run") / "config.json");
  config.replace(config.find("\"n_embd\""), std::string("\"n_embd\": 32").size(), "\"n_embd\": 48");
  write_file_atomically(path("run") / "config.json", config);
  EXPECT_EQ(generate(), 1);
  EXPECT_NE(err_.find("config.json is damaged"), std::string::npos) << err_;
  fs::remove(path("run") / "checksums.json");
  EXPECT_EQ(generate(), 1);
  EXPECT_NE(err_.find("transformer.wte.weight"), std::string::npos) << err_;
  write_file_atomically(path("run") / "config.json", "{\"model_type\": \"griffin\"}");
  EXPECT_EQ(generate(), 1);
  EXPECT_NE(err_.find("griffin"), std::string::npos) << err_;
}

// Documents of different lengths, apart by a separator: every length has its program.
TEST_F(Train, DocumentsAreGroupedByLength) {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += "document " + std::to_string(i) + ":";
    for (int word = 0; word < i * i % 23; ++word) text += " word" + std::to_string(word);
    text += i % 50 == 0 ? "||" : "|";  // some are empty
  }
  write_file_atomically(text_path(), text);
  for (const char* sampling : {"documents", "group_by_length"}) {
    const auto args = [&](const std::string& name, const std::string& steps) {
      return small_run(name + sampling, {"--separator", "|", "--sampling", sampling, "--max-steps",
                                         steps, "--context", "64", "--save-steps", "40",
                                         "--lr-scheduler-type", "constant"});
    };
    ASSERT_EQ(run(args("whole-", "80")), 0) << err_;
    EXPECT_NE(err_.find("documents"), std::string::npos) << err_;
    EXPECT_LT(json()["train_loss"].get<double>(), 3.0);
    ASSERT_EQ(run(args("part-", "40")), 0) << err_;
    ASSERT_EQ(run({"train", "--resume", path(std::string("part-") + sampling).string(),
                   "--max-steps", "80"}),
              0)
        << err_;
    EXPECT_TRUE(read_file(path(std::string("whole-") + sampling) / "model.safetensors") ==
                read_file(path(std::string("part-") + sampling) / "model.safetensors"));
  }
}

// Training on packed documents: a resumed run has the weights of an uninterrupted one, and options
// that exclude packing are refused.
TEST_F(Train, DocumentsArePacked) {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += "document " + std::to_string(i) + ":";
    for (int word = 0; word < i * i % 23; ++word) text += " word" + std::to_string(word);
    text += i % 50 == 0 ? "||" : "|";
  }
  write_file_atomically(text_path(), text);
  const auto args = [&](const std::string& name, const std::string& steps) {
    return small_run(
        name, {"--separator", "|", "--pack", "documents", "--max-steps", steps, "--context", "64",
               "--save-steps", "40", "--lr-scheduler-type", "constant"});
  };
  ASSERT_EQ(run(args("whole", "80")), 0) << err_;
  EXPECT_NE(err_.find("are longer than the context of 64 tokens and are split"), std::string::npos)
      << err_;
  EXPECT_LT(json()["train_loss"].get<double>(), 3.0);
  EXPECT_GT(json()["val_tokens"].get<int64_t>(), 100);
  ASSERT_EQ(run(args("part", "40")), 0) << err_;
  ASSERT_EQ(run({"train", "--resume", path("part").string(), "--max-steps", "80"}), 0) << err_;
  EXPECT_TRUE(read_file(path("whole") / "model.safetensors") ==
              read_file(path("part") / "model.safetensors"));
  EXPECT_EQ(run(small_run("bad", {"--pack", "documents", "--sampling", "random"})), 2);
  EXPECT_NE(err_.find("--sampling documents; got random"), std::string::npos) << err_;
  EXPECT_EQ(run(small_run("bad", {"--pack", "sentences"})), 2);
  EXPECT_NE(err_.find("one of none, documents"), std::string::npos) << err_;
}

// Without another word a model is fine-tuned as that is done, not trained as a new one, and
// everything that looks at a run before it goes says the same numbers.
TEST_F(EndToEnd, FineTuningDoesNotDamageAModel) {
  ASSERT_EQ(run(small_run("base", {"--max-steps", "150", "--learning-rate", "1e-2"})), 0) << err_;
  const double before = json()["val_loss"];
  const std::vector<std::string> from{"--init-from", path("base").string(), "--text",
                                      text_path().string()};
  const auto with = [&](std::vector<std::string> args) {
    put_options(args, from);
    return args;
  };
  ASSERT_EQ(run(with({"train", "--output-dir", path("tuned").string(), "--samples", "0",
                      "--eval-batches", "2", "--json"})),
            0)
      << err_;
  EXPECT_LT(json()["val_loss"].get<double>(), before + 0.02);
  EXPECT_NE(err_.find("(gpt2, 0.01M parameters, context 32)"), std::string::npos) << err_;
  const auto record = nlohmann::json::parse(read_file(path("tuned") / "train_config.json"));
  EXPECT_EQ(record["learning_rate"], 5e-5);
  EXPECT_EQ(record["dropout"], 0.1) << "the model's";
  EXPECT_EQ(record["context"], 32) << "the model's";
  const int64_t arena = json()["arena_bytes"];
  ASSERT_EQ(run(with({"train", "--print-config"})), 0) << err_;
  for (const char* line : {"learning_rate = 5e-05", "dropout = 0.1", "context = 32"})
    EXPECT_NE(out_.find(line), std::string::npos) << line;
  ASSERT_EQ(run(with({"plan", "--json", "--no-measure", "--eval-batches", "2"})), 0) << err_;
  EXPECT_EQ(json()["arena_bytes"], arena);
  ASSERT_EQ(run(with({"train", "--help"})), 0) << err_;
  EXPECT_NE(out_.find("probability of dropping an activation [0.1]"), std::string::npos);
}

}  // namespace
}  // namespace brrr::test
