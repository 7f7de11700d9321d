// Hugging Face's transformers loads the folders that training wrote, misses nothing in them, and
// tells the same. With the Python of BRRR_PEER_PYTHON, or python3; skipped where that has no
// transformers and torch (bench/peers/run installs them in an environment of their own).

#include <cmath>
#include <cstdlib>

#include "e2e/encoder_runs.h"

namespace brrr::test {
namespace {

class Transformers : public EncoderRuns {
 protected:
  void SetUp() override {
    EncoderRuns::SetUp();
    if (IsSkipped()) return;
    const char* given = std::getenv("BRRR_PEER_PYTHON");
    python_ = given != nullptr ? given : "python3";
    if (shell("-c 'import torch, transformers' > /dev/null 2>&1") != 0)
      GTEST_SKIP() << python_ << " has no transformers; BRRR_PEER_PYTHON names one that has";
  }
  int shell(const std::string& arguments) const {
    return std::system(fmt::format("HF_HUB_OFFLINE=1 '{}' {}", python_, arguments).c_str());
  }
  /// The answer to `request`, and in report_ what transformers missed in the folder.
  Json ask(const std::string& run, const std::string& what, const Json& request) {
    put("request.json", request.dump());
    const int code =
        shell(fmt::format("'{}/tests/e2e/with_transformers.py' '{}' {} < '{}' > '{}' 2> '{}'",
                          BRRR_SOURCE_DIR, path(run).string(), what, path("request.json").string(),
                          path("answer.json").string(), path("answer.err").string()));
    if (code != 0) {
      ADD_FAILURE() << read_file(path("answer.err"));
      return {};
    }
    const Json whole = Json::parse(read_file(path("answer.json")));
    report_ = whole["report"];
    return whole["answer"];
  }

  std::string python_;
  Json report_;
};

std::string lines_of(const Json& texts) {
  std::string lines;
  for (const Json& text : texts) lines += text.get<std::string>() + "\n";
  return lines;
}

// The scores of classes are softmax(logits), but for roundings.
void expect_scores(const Json& scores, const Json& logits) {
  ASSERT_EQ(scores.size(), logits.size()) << scores << logits;
  double sum = 0;
  for (const auto& [label, logit] : logits.items()) sum += std::exp(logit.get<double>());
  for (const auto& [label, logit] : logits.items()) {
    const double score = std::log(scores[label].get<double>());
    EXPECT_NEAR(score, logit.get<double>() - std::log(sum), 1e-5) << label << scores << logits;
  }
}

// Weights as integers: the same numbers in fp32, and near ones where rows are quantised, too.
TEST_F(Transformers, ReadQuantisedFolders) {
  if (shell("-c 'import compressed_tensors' > /dev/null 2>&1") != 0)
    GTEST_SKIP() << python_ << " has no compressed-tensors";
  ASSERT_EQ(run(pretraining("base", {"--n-embd", "128", "--max-steps", "60", "--eval-steps", "0"})),
            0)
      << err_;
  ASSERT_EQ(run(fine_tuning("classes", "classify", "classes.tsv", {"--num-train-epochs", "2"})), 0)
      << err_;
  const Json texts{"line 5 of a small text with words", "line 17 of a small text that repeat"};
  struct Method {
    Options options;
    const char* precision;
    double tolerance;
  };
  const Method methods[] = {
      {{"--method", "dynamic"}, "int8", 0.05},
      {{"--method", "weight-only"}, "fp32", 1e-4},
      {{"--method", "weight-only", "--bits", "4", "--keep", "query"}, "fp32", 1e-4}};
  for (size_t m = 0; m < std::size(methods); ++m) {
    const std::string to = "quantised" + std::to_string(m);
    Options options{"quantize", path("classes"), "--output", path(to), "--no-measure"};
    put_options(options, methods[m].options);
    ASSERT_EQ(run(options), 0) << err_;
    ASSERT_EQ(run_on(lines_of(texts), {"classify", "--model", path(to), "--json", "--all-scores",
                                       "--precision", methods[m].precision}),
              0)
        << err_;
    const Json results = Json::parse(out_)["results"];
    const Json logits = ask(to, "classify", texts);
    EXPECT_FALSE(report_.contains("missing_keys")) << report_;
    ASSERT_EQ(logits.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      double sum = 0;
      for (const auto& [label, logit] : logits[i].items()) sum += std::exp(logit.get<double>());
      for (const auto& [label, logit] : logits[i].items())
        EXPECT_NEAR(results[i]["scores"][label].get<double>(), std::exp(logit.get<double>()) / sum,
                    methods[m].tolerance)
            << to;
    }
  }
}

TEST_F(Transformers, TellTheSameClasses) {
  make_base();
  const Json texts{"line 5 of a small text with words", "line 17 of a small text that repeat",
                   "an unknown thing, really"};
  ASSERT_EQ(run(fine_tuning("classes", "classify", "classes.tsv")), 0) << err_;
  ASSERT_EQ(run_on(lines_of(texts), {"classify", "--model", path("classes").string(), "--json"}), 0)
      << err_;
  const Json classes = Json::parse(out_)["results"];
  const Json logits = ask("classes", "classify", texts);
  EXPECT_EQ(report_, Json::object());
  ASSERT_EQ(logits.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) expect_scores(classes[i]["scores"], logits[i]);

  ASSERT_EQ(run(fine_tuning("values", "regress", "values.tsv")), 0) << err_;
  ASSERT_EQ(run_on(lines_of(texts), {"classify", "--model", path("values").string(), "--json"}), 0)
      << err_;
  const Json ratings = Json::parse(out_)["results"];
  const Json values = ask("values", "classify", texts);
  EXPECT_EQ(report_, Json::object());
  ASSERT_EQ(values.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_NEAR(ratings[i]["label"].get<double>(), values[i][""].get<double>(), 1e-5);

  ASSERT_EQ(run(fine_tuning("tags", "tokens", "tags.txt")), 0) << err_;
  ASSERT_EQ(run_on("line small text of words\n",
                   {"classify", "--model", path("tags").string(), "--json", "--all-scores"}),
            0)
      << err_;
  const Json tags = Json::parse(out_)["results"][0];
  const Json of_words =
      ask("tags", "tokens", Json::array({{"line", "small", "text", "of", "words"}}));
  EXPECT_EQ(report_, Json::object());
  ASSERT_EQ(of_words.size(), 1u);
  ASSERT_EQ(of_words[0].size(), 5u);
  for (size_t i = 0; i < 5; ++i) expect_scores(tags[i]["scores"], of_words[0][i]);
}

TEST_F(Transformers, FillTheSameMasksAndEmbedTheSame) {
  make_base();
  const std::string model = path("base").string();
  const Json masked{"line 1 of a [MASK] text, with words that repeat.", "line 3 of [MASK]"};
  ASSERT_EQ(run_on(lines_of(masked), {"fill-mask", "--model", model, "--json"}), 0) << err_;
  const Json guesses = Json::parse(out_)["results"];
  const Json best = ask("base", "fill-mask", masked);
  EXPECT_EQ(report_, Json::object());
  ASSERT_EQ(best.size(), masked.size());
  for (size_t i = 0; i < masked.size(); ++i)
    for (const Json& guess : guesses[i][0]) {
      const auto token = guess["token_str"].get<std::string>();
      ASSERT_TRUE(best[i].contains(token)) << token << best[i];
      EXPECT_NEAR(std::log(guess["score"].get<double>()), best[i][token].get<double>(), 1e-5);
    }

  const Json texts{"line 5 of a small text with words", "an unknown thing, really"};
  ASSERT_EQ(run_on(lines_of(texts), {"embed", "--model", model, "--json"}), 0) << err_;
  const Json ours = Json::parse(out_)["embeddings"];
  const Json theirs = ask("base", "embed", texts);
  ASSERT_EQ(theirs.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i)
    for (size_t k = 0; k < ours[i].size(); ++k)
      EXPECT_NEAR(ours[i][k].get<double>(), theirs[i][k].get<double>(), 1e-5);
}

// A model without biases, of characters and of bytes: nothing is missing, and both continue a
// prompt with the same text.
TEST_F(Transformers, ContinueAPromptWithTheSameText) {
  for (const char* tokenizer : {"char", "byte"})
    for (const std::string architecture : {"gpt2", "llama"}) {
      Options more{"--tokenizer", tokenizer,        "--max-steps", "100",        "--eval-steps",
                   "0",           "--architecture", architecture,  "--overwrite"};
      if (architecture == "llama") put_options(more, {"--num-key-value-heads", "1"});
      ASSERT_EQ(run(small_run("run", more)), 0) << err_;
      ASSERT_EQ(run({"generate", "--model", path("run").string(), "--prompt", "line 1", "--json",
                     "--temperature", "0", "--max-new-tokens", "20"}),
                0)
          << err_;
      const Json theirs = ask("run", "generate", {{"prompt", "line 1"}, {"tokens", 20}});
      EXPECT_EQ(report_, Json::object()) << tokenizer;
      EXPECT_EQ(theirs["text"], Json::parse(out_)["text"]) << tokenizer << architecture;
    }
}

TEST_F(Transformers, ReadTheSameTokens) {
  const Json texts{"line 5 of a small text", "  two  words, that repeat.", "words\nthat\n\nrepeat"};
  const std::string text = text_path().string();
  for (const char* kind : {"char", "byte", "bpe", "wordpiece"}) {
    const std::string name = kind;
    Options make{"data", "train-tokenizer", "--kind", name};
    if (name == "bpe") put_options(make, {"--vocab-size", "300"});
    if (name == "wordpiece") put_options(make, {"--vocab-size", "120"});
    if (name == "byte") make = {"data", "prepare", "--tokenizer", "byte"};
    put_options(make, {"--text", text, "--output-dir", path(name).string()});
    ASSERT_EQ(run(make), 0) << err_;
    const Json theirs = ask(name, "encode", texts);
    ASSERT_EQ(theirs.size(), texts.size()) << name;
    for (size_t i = 0; i < texts.size(); ++i) {
      put("one.txt", texts[i].get<std::string>());
      ASSERT_EQ(std::system(fmt::format("'{}' data encode --tokenizer '{}' --json < '{}' > '{}'",
                                        BRRR_BINARY, path(name).string(), path("one.txt").string(),
                                        path("ids.json").string())
                                .c_str()),
                0);
      const Json by_line = Json::parse(read_file(path("ids.json")))["ids"];
      Json ids = Json::array();
      for (const Json& line : by_line) ids.insert(ids.end(), line.begin(), line.end());
      EXPECT_EQ(ids, theirs[i]["ids"]) << name << texts[i];
      if (name != "wordpiece") {
        EXPECT_EQ(texts[i], theirs[i]["text"]) << name;
      }
    }
  }
}

}  // namespace
}  // namespace brrr::test
