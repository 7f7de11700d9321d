// The Llama family from end to end: a published model tells its documented story, and a model of
// our own is trained, killed, resumed, evaluated and continued.

#include <cmath>

#include "base/env.h"
#include "e2e/run.h"

namespace brrr::test {
namespace {

class LlamaRuns : public EndToEnd {
 protected:
  std::vector<std::string> tiny(const std::string& name, std::vector<std::string> more = {}) const {
    std::vector<std::string> options{"--preset", "llama-char",          "--num-key-value-heads",
                                     "1",        "--intermediate-size", "48"};
    options.insert(options.end(), more.begin(), more.end());
    return small_run(name, options);
  }
};

// 260 thousand parameters, 200 tokens of greedy decoding, as llama2.c documents them.
TEST_F(LlamaRuns, Stories260KTellsItsStory) {
  const auto data = env::get("BRRR_DATA");
  const fs::path model = fs::path(data.value_or("")) / "stories260K";
  if (!fs::exists(model / "greedy-200.json")) GTEST_SKIP() << "BRRR_DATA has no stories260K/";
  const auto expected = nlohmann::json::parse(read_file(model / "greedy-200.json"));
  for (const char* cache : {"--cache", "--no-cache"}) {
    ASSERT_EQ(run({"generate", "--model", model.string(), "--prompt", "", "--temperature", "0",
                   "--max-new-tokens", "200", "--json", cache}),
              0)
        << err_;
    const nlohmann::json said = json();
    nlohmann::json ids = said["prompt_ids"];
    EXPECT_EQ(ids.size(), 1u) << "the begin-of-text token";
    for (const auto& id : said["ids"]) ids.push_back(id);
    EXPECT_EQ(ids, expected) << cache;
    EXPECT_EQ(said["tokens"], 200);
    EXPECT_EQ(said["text"].get<std::string>().substr(0, 16), "Once upon a time");
  }
  // Without a prompt the text begins there, too; a prompt has the token before it.
  ASSERT_EQ(run({"generate", "--model", model.string(), "--prompt", "Once upon", "--temperature",
                 "0", "--max-new-tokens", "3", "--json"}),
            0)
      << err_;
  EXPECT_EQ(json()["prompt_ids"][0], 1);
}

TEST_F(LlamaRuns, TrainsResumesAndIsContinued) {
  ASSERT_EQ(run(tiny("whole", {"--max-steps", "40"})), 0) << err_;
  EXPECT_NE(err_.find("1 layer, 2 heads, width 32"), std::string::npos) << err_;
  const std::string weights = read_file(path("whole") / "model.safetensors");
  ASSERT_EQ(run(tiny("part", {"--max-steps", "18"})), 0) << err_;
  ASSERT_EQ(run({"train", "--resume", path("part").string(), "--max-steps", "40"}), 0) << err_;
  EXPECT_TRUE(read_file(path("part") / "model.safetensors") == weights) << "other bits";

  const std::string model = path("whole").string();
  ASSERT_EQ(run({"eval", "--model", model, "--text", text_path().string(), "--json"}), 0) << err_;
  EXPECT_TRUE(std::isfinite(json()["loss"].get<double>()));
  std::vector<std::string> texts;
  for (const char* cache : {"--cache", "--no-cache"}) {
    ASSERT_EQ(run({"generate", "--model", model, "--prompt", "line 3", "--max-new-tokens", "40",
                   "--json", cache}),
              0)
        << err_;
    texts.push_back(json()["text"]);
  }
  EXPECT_EQ(texts[0], texts[1]);
  // The model brings its architecture and its sizes.
  ASSERT_EQ(run({"train", "--init-from", model, "--text", text_path().string(), "--max-steps", "3",
                 "--context", "16", "--samples", "0", "--output-dir", path("more").string()}),
            0)
      << err_;
  const auto config = nlohmann::json::parse(read_file(path("more") / "config.json"));
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["num_key_value_heads"], 1);
  EXPECT_EQ(run({"train", "--init-from", model, "--architecture", "gpt2"}), 2);
  EXPECT_NE(err_.find("is of the architecture llama"), std::string::npos) << err_;
  ASSERT_EQ(run({"plan", model, "--json"}), 0) << err_;
  EXPECT_GT(json()["arena_bytes"].get<int64_t>(), 0);
}

// Every kind of layer in every precision: losses fall, and a plan is exact.
TEST_F(LlamaRuns, EveryTypeTrainsInEveryPrecision) {
  for (const char* type : {"mistral", "qwen2", "qwen3"})
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      const std::string name = std::string(type) + precision;
      std::vector<std::string> options{
          "--model-type", type, "--precision",  precision, "--max-steps", "30", "--head-dim", "16",
          "--save-steps", "0",  "--eval-steps", "0",       "--dropout",   "0"};
      if (std::string(type) != "qwen3") options.insert(options.end(), {"--sliding-window", "9"});
      ASSERT_EQ(run(tiny(name, options)), 0) << name << "\n" << err_;
      const nlohmann::json result = json();
      EXPECT_LT(result["val_loss"].get<double>(), 3.6) << name;
      EXPECT_EQ(result["arena_bytes"], result["forecast_arena_bytes"]) << name;
    }
}

}  // namespace
}  // namespace brrr::test
