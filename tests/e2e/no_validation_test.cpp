// train --val-fraction 0: every kind of data is trained on as a whole, nothing is evaluated, and no
// note asks for more data.

#include "e2e/encoder_runs.h"
#include "support/picture_folder.h"

namespace brrr::test {
namespace {

class NoValidation : public EncoderRuns {
 protected:
  void expect_no_evaluation(const std::string& name, Options args) {
    SCOPED_TRACE(name);
    put_options(args, {"--val-fraction", "0", "--max-steps", "3", "--eval-steps", "1"});
    ASSERT_EQ(run(args), 0) << err_;
    EXPECT_EQ(err_.find("no validation"), std::string::npos) << err_;
    EXPECT_EQ(err_.find("NaN"), std::string::npos) << err_;
    int steps = 0;
    for (const Json& record : io::read_jsonl(path(name) / "log.jsonl")) {
      steps += record.contains("loss") ? 1 : 0;
      EXPECT_FALSE(record.contains("val_loss")) << record;
    }
    EXPECT_EQ(steps, 3);
    EXPECT_TRUE(fs::exists(path(name) / "model.safetensors") ||
                fs::exists(path(name) / "adapter_model.safetensors"));
  }
};

TEST_F(NoValidation, Texts) {
  expect_no_evaluation("windows", small_run("windows"));
  EXPECT_NE(err_.find(" + 0 tokens"), std::string::npos) << err_;
  expect_no_evaluation("stream", small_run("stream", {"--tokenize", "stream"}));
  const Options documents{"--sampling", "documents", "--separator", "\n"};
  expect_no_evaluation("documents", small_run("documents", documents));
  Options packed = documents;
  packed.insert(packed.end(), {"--pack", "documents"});
  expect_no_evaluation("packed", small_run("packed", packed));
  // A resumed run takes --val-fraction 0 from its record and does not evaluate, either.
  ASSERT_EQ(run({"train", "--resume", path("windows"), "--max-steps", "5"}), 0) << err_;
  EXPECT_EQ(err_.find("validation loss"), std::string::npos) << err_;
}

TEST_F(NoValidation, ShardsOfAFolder) {
  ASSERT_EQ(run({"data", "prepare", "--text", text_path(), "--tokenizer", "byte", "--output-dir",
                 path("shards")}),
            0)
      << err_;
  Options args = small_run("run", {"--tokenizer", "byte"});
  const auto text = std::ranges::find(args, "--text");
  ASSERT_NE(text, args.end());
  *text = "--data";
  *std::next(text) = path("shards");
  expect_no_evaluation("run", args);
  EXPECT_NE(err_.find("is not read, because --val-fraction is 0"), std::string::npos) << err_;
}

TEST_F(NoValidation, Labels) {
  ASSERT_EQ(run(pretraining("base", {"--max-steps", "2", "--eval-steps", "0"})), 0) << err_;
  for (const auto& [task, file] :
       {std::pair{"classify", "classes.tsv"}, {"regress", "values.tsv"}, {"tokens", "tags.txt"}}) {
    expect_no_evaluation(task, fine_tuning(task, task, file));
    EXPECT_NE(err_.find(" and 0 for validation"), std::string::npos) << err_;
  }
  // The record, in which the preset's --load-best-model-at-end is off, serves other verbs and runs.
  ASSERT_EQ(run({"plan", path("classify")}), 0) << err_;
  Options printed = fine_tuning("again", "classify", "classes.tsv", {"--val-fraction", "0"});
  put_options(printed, {"--max-steps", "2"});
  Options printing = printed;
  printing.push_back("--print-config");
  std::erase(printing, "--json");
  ASSERT_EQ(run(printing), 0) << err_;
  put("again.toml", out_);
  ASSERT_EQ(run({"train", path("again.toml")}), 0) << err_;
  Options resumed{"train", "--resume", path("classify"), "--max-steps", "4"};
  ASSERT_EQ(run(resumed), 0) << err_;
  put_options(resumed, {"--max-steps", "5"});
  resumed.push_back("--load-best-model-at-end");
  EXPECT_EQ(run(resumed), 2) << err_;
  Options best = fine_tuning("best", "classify", "classes.tsv", {"--val-fraction", "0"});
  best.push_back("--load-best-model-at-end");
  EXPECT_EQ(run(best), 2);
  EXPECT_NE(err_.find("--val-fraction 0 leaves none"), std::string::npos) << err_;
}

TEST_F(NoValidation, Pictures) {
  write_picture_folder(path("pictures"), 5);
  expect_no_evaluation("pictures_run", small_picture_run("pictures_run"));
}

TEST_F(NoValidation, ConversationsAndPairs) {
  ASSERT_EQ(run(small_run("base", {"--max-steps", "2", "--tokenizer", "byte", "--context", "64",
                                   "--eval-steps", "0"})),
            0)
      << err_;
  std::string chats, pairs;
  for (int i = 0; i < 20; ++i) {
    chats += fmt::format("{{\"prompt\": \"say {0}\", \"completion\": \"yes {0}\"}}\n", i);
    pairs += fmt::format(
        "{{\"prompt\": \"say {0}\", \"chosen\": \"yes {0}\", \"rejected\": \"no {0}\"}}\n", i);
  }
  put("chat.jsonl", chats);
  put("dpo.jsonl", pairs);
  put("chat.jinja",
      "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\n{% endfor %}"
      "{% if add_generation_prompt %}a: {% endif %}");
  for (const std::string task : {"chat", "dpo"})
    expect_no_evaluation(task, {"train", "--task", task, "--init-from", path("base"), "--data",
                                path(task + ".jsonl"), "--chat-template", path("chat.jinja"),
                                "--output-dir", path(task), "--lora-r", "4", "--batch-size", "4",
                                "--logging-steps", "1", "--threads", "1"});
}

}  // namespace
}  // namespace brrr::test
