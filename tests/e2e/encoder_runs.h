#pragma once
// Runs of encoders for the end-to-end tests: pre-training on a small text, files of labels that its
// words tell, and fine-tuning on them.

#include "e2e/run.h"

namespace brrr::test {

using Options = std::vector<std::string>;
using Json = nlohmann::json;

class EncoderRuns : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    if (IsSkipped()) return;
    // The label of a text is told by one of its words, the rating by how often it stands there.
    std::string classes = "label\ttext\n", pairs = "label\tsentence1\tsentence2\n", values, tags;
    for (int i = 0; i < 240; ++i) {
      const std::string words = "line " + std::to_string(i * i % 97) + " of a small text";
      const bool is_good = i * 7 % 13 < 6;
      classes += std::string(is_good ? "good" : "bad") + "\t" + words +
                 (is_good ? " with words" : " that repeat") + "\n";
      pairs += std::string(is_good ? "1" : "0") + "\t" + words + "\t" +
               (is_good ? "with words" : "that repeat") + "\n";
      std::string repeated;
      for (int n = 0; n < i % 4; ++n) repeated += " words";
      values += fmt::format("{:.1f}\t{}{}\n", i % 4 - 1.5, words, repeated);
      tags += "line\tO\nsmall\tB-N\ntext\tI-N\nof\tO\nwords\tB-N\n\n";
    }
    put("classes.tsv", classes);
    put("pairs.tsv", pairs);
    put("values.tsv", values);
    put("tags.txt", tags);
  }
  void put(const std::string& name, const std::string& content) {
    write_file_atomically(path(name), content);
  }

  Options pretraining(const std::string& name, Options more = {}) const {
    Options options =
        small_run(name, {"--preset", "bert-mini", "--tokenizer", "wordpiece:120", "--learning-rate",
                         "2e-3", "--separator", "\n", "--sampling", "documents"});
    put_options(options, more);
    return options;
  }
  Options fine_tuning(const std::string& name, const std::string& task, const std::string& file,
                      Options more = {}) const {
    Options options{"train",    "--task",          task,         "--data",
                    path(file), "--init-from",     path("base"), "--output-dir",
                    path(name), "--context",       "32",         "--num-train-epochs",
                    "4",        "--learning-rate", "2e-3",       "--batch-size",
                    "8",        "--eval-steps",    "20",         "--threads",
                    "1",        "--json"};
    put_options(options, more);
    return options;
  }
  void make_base() {
    ASSERT_EQ(run(pretraining("base", {"--max-steps", "150", "--eval-steps", "0"})), 0) << err_;
  }
  /// Runs with `text` as standard input, by way of a file.
  int run_on(const std::string& text, Options args) {
    put("input.txt", text);
    args.insert(args.end(), {"--text", path("input.txt")});
    return run(args);
  }
};

}  // namespace brrr::test
