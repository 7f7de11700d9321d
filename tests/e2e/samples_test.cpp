// Texts that a model writes while it trains: where they go, that they change nothing, that a run
// which is resumed writes the same ones, and that their memory is planned.

#include <algorithm>

#include "base/memory.h"
#include "e2e/encoder_runs.h"
#include "support/http.h"

namespace brrr::test {
namespace {

using Json = nlohmann::json;
using OptionWords = std::vector<std::string>;

class Samples : public EncoderRuns {
 protected:
  /// A run of 20 steps that writes two texts every 6.
  OptionWords writing(const std::string& name, const OptionWords& more = {}) const {
    OptionWords all{"--max-steps",     "20", "--samples",       "2",  "--sample-steps", "6",
                    "--sample-tokens", "40", "--sample-prompt", "the"};
    put_options(all, more);
    return small_run(name, all);
  }
  std::vector<Json> samples_of(const std::string& name) const {
    std::vector<Json> all;
    for (const Json& record : io::read_jsonl(path(name) / "log.jsonl"))
      if (record.contains("samples")) all.push_back(record);
    return all;
  }
  std::string weights(const std::string& name) const {
    return read_file(path(name) / "model.safetensors");
  }
};

TEST_F(Samples, GoEverywhereAndChangeNoBit) {
  for (const std::string precision : {"fp32", "bf16"}) {
    const std::string plain = "plain-" + precision, with = "with-" + precision;
    ASSERT_EQ(run(small_run(plain, {"--max-steps", "20", "--precision", precision})), 0) << err_;
    ASSERT_EQ(run(writing(with, {"--precision", precision})), 0) << err_;
    EXPECT_TRUE(weights(plain) == weights(with)) << precision;

    const std::vector<Json> logged = samples_of(with);
    ASSERT_EQ(logged.size(), 4u);
    for (size_t i = 0; i < logged.size(); ++i) {
      EXPECT_EQ(logged[i]["step"], i < 3 ? 6 * (i + 1) : 20);
      ASSERT_EQ(logged[i]["samples"].size(), 2u);
      const auto text = logged[i]["samples"][0].get<std::string>();
      EXPECT_TRUE(text.starts_with("the")) << text;
      EXPECT_EQ(text.size(), 43u) << "a character a token";
      EXPECT_NE(logged[i]["samples"][0], logged[i]["samples"][1]);
    }
    EXPECT_NE(err_.find("step 6: sample 1\n    the"), std::string::npos) << err_;
    EXPECT_EQ(json()["samples"], logged[3]["samples"]);
    EXPECT_EQ(json()["samples_step"], 20);
    EXPECT_EQ(Json::parse(read_file(path(with) / "samples.json"))["samples"], logged[3]["samples"]);
    std::string events;
    for (const auto& file : fs::directory_iterator(path(with) / "tensorboard"))
      events += read_file(file.path());
    const auto text = logged[0]["samples"][0].get<std::string>();
    EXPECT_NE(events.find("    " + text.substr(0, text.find('\n'))), std::string::npos);

    ASSERT_EQ(run({"report", path(with).string(), "--json"}), 0) << err_;
    const Json reported = json()["runs"][0]["samples"];
    ASSERT_EQ(reported.size(), 8u) << "those at the end stand there once";
    EXPECT_EQ(reported[0]["step"], 6);
    EXPECT_EQ(reported[0]["text"], logged[0]["samples"][0]);
  }
}

// Whatever a model writes, the terminal obeys none of it.
TEST_F(Samples, AreEscapedOnTheTerminal) {
  ASSERT_EQ(run(writing("run", {"--tokenizer", "byte", "--sample-tokens", "300"})), 0) << err_;
  EXPECT_NE(err_.find("\\x"), std::string::npos) << err_;
  EXPECT_TRUE(std::none_of(err_.begin(), err_.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
  })) << err_;
}

TEST_F(Samples, ARunThatIsResumedWritesTheSame) {
  ASSERT_EQ(run(writing("whole", {"--save-steps", "3"})), 0) << err_;
  // From a step with samples and from one without.
  ASSERT_EQ(run(writing("again", {"--save-steps", "3", "--save-total-limit", "0"})), 0) << err_;
  for (const std::string from : {"checkpoint-000018", "checkpoint-000009"}) {
    ASSERT_EQ(run({"train", "--resume", (path("again") / from).string()}), 0) << err_;
    EXPECT_EQ(samples_of("again"), samples_of("whole")) << from;
    EXPECT_TRUE(weights("again") == weights("whole"));
  }
  ASSERT_EQ(run(writing("killed", {"--save-steps", "3"}), {"BRRR_FAULT=checkpoint.prune=kill"}),
            128 + SIGKILL);
  ASSERT_EQ(run({"train", "--resume", path("killed").string()}), 0) << err_;
  EXPECT_EQ(samples_of("killed"), samples_of("whole"));
  EXPECT_TRUE(weights("killed") == weights("whole"));
}

TEST_F(Samples, TheirMemoryIsPlanned) {
  const OptionWords large{"--n-layer",    "4", "--n-embd",    "128", "--context",      "256",
                          "--threads",    "1", "--max-steps", "4",   "--sample-steps", "2",
                          "--eval-steps", "0"};
  OptionWords plan = writing("run", large);
  const auto planned = [&](const OptionWords& more) {
    OptionWords args = plan;
    args[0] = "plan";
    put_options(args, more);
    EXPECT_EQ(run(args), 0) << err_;
    return json();
  };
  const Json with = planned({}), without = planned({"--sample-steps", "0"});
  // Keys and values of four layers in f32, for the prompt, special tokens and what follows.
  const int64_t cache = 2 * 4 * 128 * 4 * (3 + 8 + 40);
  EXPECT_EQ(with["components"]["cache of samples f32"], cache) << with["components"];
  EXPECT_GE(with["arena_bytes"].get<int64_t>(), without["arena_bytes"].get<int64_t>() + cache);

  ASSERT_EQ(run(writing("run", large)), 0) << err_;
  EXPECT_EQ(json()["arena_bytes"], json()["forecast_arena_bytes"]);
  // Pages of shared libraries that are resident when a process starts differ between two processes:
  // the forecast of a process counts as right within 5%.
  const auto needed = json()["forecast_needed_bytes"].get<int64_t>();
  const int64_t most = needed + needed / 20;
  const std::string limit = std::to_string(most) + "B";
  OptionWords limited = writing("limited", large);
  limited.insert(limited.end(), {"--memory-limit", limit});
  ASSERT_EQ(run(limited), 0) << err_;
  EXPECT_LE(json()["needed_peak_bytes"].get<int64_t>(), most);
}

TEST_F(Samples, WhatContinuesNoTextRefusesThem) {
  EXPECT_EQ(run({"train", "--preset", "bert-mini", "--text", text_path().string(), "--tokenizer",
                 "wordpiece:100", "--output-dir", path("bert").string(), "--sample-steps", "5"}),
            2);
  EXPECT_NE(err_.find("--sample-steps: this model fills masked tokens in and does not continue"),
            std::string::npos)
      << err_;
  EXPECT_FALSE(fs::exists(path("bert"))) << "it is known before the run begins";
  EXPECT_EQ(run(writing("run", {"--sample-prompt", "\xe2\x82\xac"})), 2);
  EXPECT_NE(err_.find("--sample-prompt: "), std::string::npos) << err_;
  EXPECT_FALSE(fs::exists(path("run")));
}

TEST_F(Samples, ThePageOfARunShowsThem) {
  Child child(path("."), writing("run", {"--live", "--max-steps", "900", "--sample-steps", "100",
                                         "--save-steps", "0"}));
  std::string err;
  size_t at = std::string::npos;
  for (int i = 0; i < 600 && at == std::string::npos; ++i) {
    ::usleep(20'000);
    err = child.err();
    at = err.find("live: http://127.0.0.1:");
    if (at != std::string::npos && err.find('\n', at) == std::string::npos) at = std::string::npos;
  }
  ASSERT_NE(at, std::string::npos) << err;
  const std::string events = http_get(
      std::atoi(err.c_str() + at + std::string("live: http://127.0.0.1:").size()), "/events");
  EXPECT_NE(events.find("\"samples\":[{\"step\":"), std::string::npos);
  EXPECT_EQ(child.wait(), 0) << child.err();
}

}  // namespace
}  // namespace brrr::test
