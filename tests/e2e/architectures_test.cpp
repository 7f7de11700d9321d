// Every architecture from end to end: a model is trained, killed, resumed, evaluated and continued;
// its variants train in every precision. A published model tells its documented story.

#include <cmath>
#include <set>

#include "base/env.h"
#include "e2e/run.h"
#include "models/model.h"

namespace brrr::test {
namespace {

// 260 thousand parameters, 200 tokens of greedy decoding, as llama2.c documents them.
TEST_F(EndToEnd, Stories260KTellsItsStory) {
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

using Options = std::vector<std::string>;

/// A small model of an architecture's first preset.
struct Family {
  const char* architecture;
  Options small;                  // besides small_run()
  std::vector<Options> variants;  // other kinds of layers
};
const Family kFamilies[] = {
    {"gpt2", {}, {{"--bias", "true"}}},
    {"llama",
     {"--num-key-value-heads", "1", "--intermediate-size", "48"},
     {{"--model-type", "mistral", "--head-dim", "16", "--sliding-window", "9"},
      {"--model-type", "qwen2", "--sliding-window", "9"},
      {"--model-type", "qwen3", "--head-dim", "16"}}},
    {"gemma3",
     {"--num-key-value-heads", "1", "--intermediate-size", "48", "--sliding-window", "9"},
     {{"--head-dim", "16", "--query-pre-attn-scalar", "20", "--rope-local-base-freq", "100"},
      {"--tie-word-embeddings", "false"}}},
    {"lstm",
     {"--learning-rate", "1e-2"},
     {{"--cell", "gru", "--embedding-size", "16", "--warmup-steps", "5"},
      {"--tie-word-embeddings", "true", "--warmup-steps", "5"}}},
    {"gpt_neox",
     {"--rotary-pct", "0.5"},
     {{"--use-parallel-residual", "true"}, {"--use-parallel-residual", "false"}}},
};

class Architectures : public EndToEnd, public testing::WithParamInterface<Family> {
 protected:
  bool is_recurrent() const { return GetParam().architecture == std::string_view("lstm"); }
  Options tiny(const std::string& name, const Options& more) const {
    Options options{"--architecture", GetParam().architecture};
    put_options(options, GetParam().small);
    put_options(options, more);
    options = small_run(name, options);
    if (is_recurrent()) {  // no heads
      const auto heads = std::ranges::find(options, "--n-head");
      options.erase(heads, heads + 2);
    }
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Each, Architectures, testing::ValuesIn(kFamilies),
                         [](const auto& row) { return std::string(row.param.architecture); });

TEST(ArchitectureFamilies, AreAllTested) {
  std::set<std::string> tested, all;
  for (const Family& f : kFamilies) tested.insert(f.architecture);
  // Encoders: encoders_test.cpp.
  for (const models::Architecture* a : models::all_architectures())
    if (a->head == models::Head::next_token) all.insert(a->name);
  EXPECT_EQ(tested, all);
}

TEST_P(Architectures, TrainsResumesAndIsContinued) {
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

  const std::string long_prompt(static_cast<size_t>(1000), '3');
  ASSERT_EQ(run({"generate", "--model", model, "--prompt", long_prompt, "--max-new-tokens", "2"}),
            0)
      << err_;
  EXPECT_EQ(
      err_.find("note: the prompt has 1,000 tokens, the model's context ") != std::string::npos,
      !is_recurrent())
      << err_;

  // The model brings its architecture, its sizes and how its texts are to be made.
  const std::string generation = R"({"eos_token_id": [1, 2], "temperature": 0.5})";
  write_file_atomically(path("whole") / "generation_config.json", generation);
  ASSERT_EQ(run({"train", "--init-from", model, "--text", text_path().string(), "--max-steps", "3",
                 "--context", "16", "--samples", "0", "--output-dir", path("more").string()}),
            0)
      << err_;
  const auto before = nlohmann::json::parse(read_file(path("whole") / "config.json")),
             after = nlohmann::json::parse(read_file(path("more") / "config.json"));
  for (const auto& [key, value] : before.items()) EXPECT_EQ(after[key], value) << key;
  EXPECT_NE(err_.find("starting from " + model), std::string::npos) << err_;
  EXPECT_EQ(read_file(path("more") / "generation_config.json"), generation);
  EXPECT_EQ(read_file(path("more") / "checkpoint-000003" / "generation_config.json"), generation);
  for (const models::Architecture* other : models::all_architectures()) {
    if (other->name == GetParam().architecture) continue;
    EXPECT_EQ(run({"train", "--init-from", model, "--architecture", other->name}), 2);
    EXPECT_NE(err_.find(std::string("is of the architecture ") + GetParam().architecture),
              std::string::npos)
        << err_;
  }
  ASSERT_EQ(run({"plan", model, "--json"}), 0) << err_;
  EXPECT_GT(json()["arena_bytes"].get<int64_t>(), 0);
}

// Losses fall, and the plan was exact.
TEST_P(Architectures, VariantsTrainInEveryPrecision) {
  int number = 0;
  for (const Options& variant : GetParam().variants)
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      const std::string name = "variant" + std::to_string(++number);
      Options options{"--precision", precision,      "--max-steps", "30",        "--save-steps",
                      "0",           "--eval-steps", "0",           "--dropout", "0"};
      put_options(options, variant);
      ASSERT_EQ(run(tiny(name, options)), 0) << variant.back() << precision << "\n" << err_;
      const nlohmann::json result = json();
      EXPECT_LT(result["val_loss"].get<double>(), 3.6) << variant.back() << precision;
      EXPECT_EQ(result["arena_bytes"], result["forecast_arena_bytes"]);
    }
}

}  // namespace
}  // namespace brrr::test
