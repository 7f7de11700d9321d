// The main job, as a user runs it.

#include <algorithm>
#include <cmath>

#include "e2e/run.h"
#include "io/model_folder.h"

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
  for (const char* name : {"model.safetensors", "config.json", "char.json", "log.jsonl", "loss.svg",
                           "train_config.json", "tensorboard"})
    EXPECT_TRUE(fs::exists(path("run") / name)) << name;
  const io::ModelFolder model = io::open_model(path("run"));
  EXPECT_EQ(model.config.n_embd, 32);
}

TEST_F(Train, ThreadsDoNotChangeTheBits) {
  ASSERT_EQ(run(small_run("one", {"--threads", "1", "--max-steps", "60"})), 0) << err_;
  ASSERT_EQ(run(small_run("two", {"--threads", "2", "--max-steps", "60"})), 0) << err_;
  EXPECT_EQ(loss_series("one"), loss_series("two"));
}

TEST_F(Train, PassesCanBeDisabled) {
  ASSERT_EQ(run(small_run("all", {"--max-steps", "30"})), 0) << err_;
  ASSERT_EQ(run(small_run("none", {"--max-steps", "30", "--disable-pass", "schedule"})), 0) << err_;
  EXPECT_EQ(loss_series("all"), loss_series("none"));
  ASSERT_EQ(run(small_run("bad", {"--disable-pass", "fly"})), 2);
  EXPECT_NE(err_.find("fly"), std::string::npos);
}

TEST_F(Train, EvaluatesWhatItTrained) {
  ASSERT_EQ(run(small_run("run")), 0) << err_;
  const double val_loss = json()["val_loss"].get<double>();
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
  write_file_atomically(path("run") / "model.safetensors", weights.substr(0, weights.size() / 2));
  EXPECT_EQ(generate(), 1);
  EXPECT_NE(err_.find("model.safetensors"), std::string::npos) << err_;
  write_file_atomically(path("run") / "model.safetensors", weights);
  std::string config = read_file(path("run") / "config.json");
  config.replace(config.find("\"n_embd\""), std::string("\"n_embd\": 32").size(), "\"n_embd\": 48");
  write_file_atomically(path("run") / "config.json", config);
  EXPECT_EQ(generate(), 1);
  EXPECT_NE(err_.find("transformer.wte.weight"), std::string::npos) << err_;
  write_file_atomically(path("run") / "config.json", "{\"model_type\": \"llama\"}");
  EXPECT_EQ(generate(), 1);
  EXPECT_NE(err_.find("llama"), std::string::npos) << err_;
}

}  // namespace
}  // namespace brrr::test
