// GPT-NeoX from end to end: a model is trained, killed, resumed, evaluated and continued.

#include <cmath>

#include "e2e/run.h"

namespace brrr::test {
namespace {

class GptNeoxRuns : public EndToEnd {
 protected:
  std::vector<std::string> tiny(const std::string& name, std::vector<std::string> more = {}) const {
    std::vector<std::string> options{"--preset", "neox-char", "--rotary-pct", "0.5"};
    options.insert(options.end(), more.begin(), more.end());
    return small_run(name, options);
  }
};

TEST_F(GptNeoxRuns, TrainsResumesAndIsContinued) {
  ASSERT_EQ(run(tiny("whole", {"--max-steps", "40"})), 0) << err_;
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
  EXPECT_EQ(config["model_type"], "gpt_neox");
  EXPECT_EQ(config["rotary_pct"], 0.5);
  ASSERT_EQ(run({"plan", model, "--json"}), 0) << err_;
  EXPECT_GT(json()["arena_bytes"].get<int64_t>(), 0);
}

// Both forms of the residual in every precision: losses fall, and a plan is exact.
TEST_F(GptNeoxRuns, BothResidualsTrainInEveryPrecision) {
  for (const char* parallel : {"true", "false"})
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      const std::string name = std::string("parallel_") + parallel + "_" + precision;
      ASSERT_EQ(run(tiny(name, {"--use-parallel-residual", parallel, "--precision", precision,
                                "--max-steps", "30", "--save-steps", "0", "--eval-steps", "0"})),
                0)
          << name << "\n"
          << err_;
      const nlohmann::json result = json();
      EXPECT_LT(result["val_loss"].get<double>(), 3.6) << name;
      EXPECT_EQ(result["arena_bytes"], result["forecast_arena_bytes"]) << name;
    }
}

}  // namespace
}  // namespace brrr::test
