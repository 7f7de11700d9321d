// brrr generate --prompts: answers equal those of single prompts, invalid lines are reported, and
// beam search.

#include <map>

#include "e2e/run.h"

namespace brrr::test {
namespace {

using PromptArgs = std::vector<std::string>;

class Prompts : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(run(small_run("run", {"--max-steps", "2", "--tokenizer", "byte"})), 0) << err_;
  }
  PromptArgs with(const PromptArgs& more) const {
    PromptArgs args{"generate", "--model", path("run").string()};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  PromptArgs with_prompts(const std::string& lines, const PromptArgs& more = {}) const {
    write_file_atomically(path("prompts.jsonl"), lines);
    PromptArgs args = with({"--prompts", path("prompts.jsonl").string()});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  /// Parses the answers that the last run printed, one per line.
  std::vector<nlohmann::json> answers() const {
    std::vector<nlohmann::json> list;
    size_t at = 0;
    for (size_t end = 0; (end = out_.find('\n', at)) != std::string::npos; at = end + 1)
      list.push_back(nlohmann::json::parse(out_.substr(at, end - at)));
    return list;
  }
};

TEST_F(Prompts, AnswersAreThoseOfSinglePrompts) {
  std::string lines;
  std::map<std::string, std::string> alone;
  for (int i = 0; i < 5; ++i) {
    const std::string prompt = "line " + std::string(static_cast<size_t>(3 * i + 1), 'a');
    lines += fmt::format("{{\"prompt\": \"{}\", \"id\": \"p{}\", \"seed\": {}}}\n", prompt, i, i);
    ASSERT_EQ(run(with({"--prompt", prompt, "--seed", std::to_string(i), "--max-new-tokens", "40",
                        "--json"})),
              0)
        << err_;
    // The text of a single prompt begins with it.
    alone[fmt::format("p{}", i)] = json()["text"].get<std::string>().substr(prompt.size());
  }
  for (const PromptArgs& how :
       {PromptArgs{"--parallel", "2", "--ordered"}, {"--parallel", "5", "--prefill-tokens", "3"}}) {
    PromptArgs more = how;
    more.insert(more.end(), {"--max-new-tokens", "40", "--logprobs"});
    ASSERT_EQ(run(with_prompts(lines, more)), 0) << err_;
    const auto got = answers();
    ASSERT_EQ(got.size(), 5);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto id = got[i]["id"].get<std::string>();
      EXPECT_EQ(got[i]["text"], alone.at(id));
      EXPECT_EQ(got[i]["finish_reason"], "length");
      EXPECT_EQ(got[i]["ids"].size(), 40);
      EXPECT_EQ(got[i]["logprobs"].size(), 40);
      if (how.back() == "--ordered") {
        EXPECT_EQ(id, fmt::format("p{}", i));
      }
    }
  }
}

TEST_F(Prompts, LinesThatCannotBeRunAreSaidAndTheOthersRun) {
  const std::string lines =
      "{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\", \"id\": 9}\n{\"prompt\": \"c\", \"id\": 9}\n"
      "{\"promt\": \"d\"}\n[1]\n{\"prompt\": \"e\",\n{\"prompt\": \"f\", \"temperature\": -1}\n"
      "{\"prompt\": \"g\", \"max_tokens\": 0}\n{\"prompt\": \"h\", \"stop\": [1]}\n"
      "{\"prompt\": \"i\", \"n\": 2, \"max_tokens\": 3}";
  EXPECT_EQ(run(with_prompts(lines, {"--max-new-tokens", "5", "--ordered"})), 1);
  const auto got = answers();
  ASSERT_EQ(got.size(), 4);
  EXPECT_EQ(got[0]["id"], 1);
  EXPECT_EQ(got[1]["id"], 9);
  for (const int sample : {0, 1}) {
    const auto& answer = got[static_cast<size_t>(2 + sample)];
    EXPECT_EQ(answer["id"], 11);
    EXPECT_EQ(answer["index"], sample);
    EXPECT_EQ(answer["ids"].size(), 3);
  }
  for (const char* expected :
       {"line 4: duplicate id 9", "line 5: \"prompt\" is missing",
        "line 6: expected a JSON object with \"prompt\"", "line 7: not valid JSON at column",
        "line 8: --temperature must be between", "line 9: \"max_tokens\" must be an integer from 1",
        "line 10: \"stop\" must be a string or a list of strings"})
    EXPECT_NE(err_.find(expected), std::string::npos) << expected << "\n" << err_;
  EXPECT_EQ(run(with_prompts("{\"prompt\": \"a\", \"warmth\": 2}")), 1);
  EXPECT_NE(err_.find("unknown key 'warmth'; expected one of adapter, frequency_penalty, id"),
            std::string::npos)
      << err_;
  EXPECT_EQ(run(with_prompts("\n\n")), 1);
  EXPECT_NE(err_.find("has no prompts"), std::string::npos) << err_;
}

TEST_F(Prompts, BeamsAreOrderedByScoreAndDrawNothing) {
  ASSERT_EQ(run(with({"--prompt", "line", "--beam-size", "4", "--num-samples", "4",
                      "--max-new-tokens", "12", "--json"})),
            0)
      << err_;
  const auto ids = json()["ids"];
  ASSERT_EQ(ids.size(), 4);
  EXPECT_NE(ids[0], ids[1]);
  ASSERT_EQ(run(with_prompts("{\"prompt\": \"line\", \"n\": 4}\n{\"prompt\": \"x\", \"n\": 5}\n",
                             {"--beam-size", "4", "--max-new-tokens", "12"})),
            1);
  EXPECT_NE(err_.find("\"n\" must be at most the 4 beams; found 5"), std::string::npos) << err_;
  const auto got = answers();
  ASSERT_EQ(got.size(), 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(got[i]["ids"], ids[i]);
}

TEST_F(Prompts, OptionsThatDoNotGoTogetherAreRefused) {
  const std::string file = path("prompts.jsonl").string();
  const std::pair<PromptArgs, const char*> usages[] = {
      {{"--prompts", file, "--prompt", "a"}, "expected --prompts or --prompt, not both"},
      {{"--prompts", file, "--no-cache"}, "--no-cache: texts at once have a cache"},
      {{"--prompt", "a", "--ordered"}, "--ordered needs --prompts"},
      {{"--prompt", "a", "--beam-size", "4", "--temperature", "1"},
       "--temperature does not apply to a beam search"},
      {{"--prompt", "a", "--beam-size", "2", "--num-samples", "3"}, "at most as many texts; got 3"},
      {{"--prompt", "a", "--length-penalty", "2"}, "--length-penalty needs --beam-size"},
      {{"--prompt", "a", "--num-samples", "0"}, "--num-samples"}};
  for (const auto& [args, expected] : usages) {
    EXPECT_EQ(run(with(args)), 2) << expected;
    EXPECT_NE(err_.find(expected), std::string::npos) << expected << "\n" << err_;
  }
  EXPECT_EQ(run(with({"--prompts", path("nothing").string()})), 1);
  EXPECT_NE(err_.find("nothing"), std::string::npos) << err_;
}

}  // namespace
}  // namespace brrr::test
