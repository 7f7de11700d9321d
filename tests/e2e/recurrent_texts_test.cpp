// Recurrent nets that learn classes of texts from scratch, with a tokenizer of their own.

#include "e2e/run.h"

namespace brrr::test {
namespace {

class RecurrentTexts : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    if (IsSkipped()) return;
    const char* const nouns[] = {"film", "book", "song", "meal", "trip"};
    std::string rows = "text\tlabel\n";
    for (int i = 0; i < 200; ++i) {
      const char* const noun = nouns[i % 5];
      const std::string begin = i % 3 == 0 ? "as I said before, this " : "the ";
      rows += fmt::format("{}{} was {}\t{}\n", begin, noun, i % 2 == 0 ? "lovely" : "dreadful",
                          i % 2 == 0 ? "good" : "poor");
    }
    write_file_atomically(path("rows.tsv"), rows);
  }
  std::vector<std::string> training(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args{"train",
                                  "--architecture",
                                  "lstm",
                                  "--task",
                                  "classify",
                                  "--data",
                                  path("rows.tsv").string(),
                                  "--tokenizer",
                                  "char",
                                  "--n-embd",
                                  "24",
                                  "--max-steps",
                                  "60",
                                  "--learning-rate",
                                  "0.02",
                                  "--save-steps",
                                  "20",
                                  "--output-dir",
                                  path("run").string(),
                                  "--json"};
    put_options(args, more);
    return args;
  }
};

TEST_F(RecurrentTexts, LearnClassesAndClassify) {
  for (const char* cell : {"lstm", "gru"}) {
    fs::remove_all(path("run"));
    ASSERT_EQ(run(training({"--cell", cell})), 0) << err_;
    EXPECT_GT(json()["accuracy"].get<double>(), 0.95) << cell;
    const std::string model = path("run").string();
    ASSERT_EQ(run({"eval", "--model", model, "--data", path("rows.tsv").string(), "--json"}), 0)
        << err_;
    EXPECT_EQ(json()["texts"], 200);
    EXPECT_GT(json()["accuracy"].get<double>(), 0.95) << cell;

    // Padding behind a text changes none of its bits.
    const std::string text = "the song was lovely";
    write_file_atomically(path("one.txt"), text + "\n");
    write_file_atomically(path("two.txt"), text + "\nas I said before, this meal was dreadful\n");
    ASSERT_EQ(run({"classify", "--model", model, path("one.txt").string(), "--json"}), 0) << err_;
    const auto alone = json()["results"][0];
    EXPECT_EQ(alone["label"], "good");
    ASSERT_EQ(run({"classify", "--model", model, path("two.txt").string(), "--json"}), 0) << err_;
    EXPECT_EQ(json()["results"][0], alone);
    EXPECT_EQ(json()["results"][1]["label"], "poor");
  }
}

TEST_F(RecurrentTexts, ResumedRunsGiveTheSameBits) {
  ASSERT_EQ(run(training({"--max-steps", "40"})), 0) << err_;
  const std::string whole = read_file(path("run") / "model.safetensors");
  fs::remove_all(path("run") / "checkpoint-000040");
  fs::remove(path("run") / "model.safetensors");
  ASSERT_EQ(run({"train", "--resume", path("run").string()}), 0) << err_;
  EXPECT_TRUE(read_file(path("run") / "model.safetensors") == whole);
}

TEST_F(RecurrentTexts, RefuseWhatTheyCannotLearn) {
  std::vector<std::string> words = training();
  words[4] = "tokens";
  EXPECT_EQ(run(words), 2);
  EXPECT_NE(err_.find("--task tokens needs an encoder"), std::string::npos) << err_;
  std::vector<std::string> other = training();
  other[2] = "gpt2";
  EXPECT_EQ(run(other), 2);
  EXPECT_NE(err_.find("or --architecture lstm, which learns it from scratch"), std::string::npos)
      << err_;
}

}  // namespace
}  // namespace brrr::test
