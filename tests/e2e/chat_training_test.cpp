// train --task chat: conversations are learnt, the template goes with the model, a resumed run has
// the same bits.

#include "e2e/run.h"

namespace brrr::test {
namespace {

constexpr const char* kTrainingTemplate =
    "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}a: {% endif %}";

class ChatTraining : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(run(small_run("base", {"--max-steps", "4", "--tokenizer", "byte", "--context", "64",
                                     "--save-steps", "0", "--eval-steps", "0"})),
              0)
        << err_;
    std::string lines;
    for (int i = 0; i < 60; ++i)
      lines += fmt::format(
          "{{\"messages\": [{{\"role\": \"user\", \"content\": \"say {0}\"}}, "
          "{{\"role\": \"assistant\", \"content\": \"yes {0}\"}}]}}\n",
          i % 7);
    write_file_atomically(path("chats.jsonl"), lines);
    write_file_atomically(path("chat.jinja"), kTrainingTemplate);
  }
  std::vector<std::string> learn(const std::string& name,
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args{"train",
                                  "--task",
                                  "chat",
                                  "--init-from",
                                  path("base").string(),
                                  "--data",
                                  path("chats.jsonl").string(),
                                  "--chat-template",
                                  path("chat.jinja").string(),
                                  "--output-dir",
                                  path(name).string(),
                                  "--max-steps",
                                  "8",
                                  "--eval-steps",
                                  "4",
                                  "--learning-rate",
                                  "0.01",
                                  "--batch-size",
                                  "2",
                                  "--samples",
                                  "1",
                                  "--sample-tokens",
                                  "4"};
    put_options(args, more);
    return args;
  }
};

TEST_F(ChatTraining, ResumedRunsHaveTheSameBits) {
  ASSERT_EQ(run(learn("whole")), 0) << err_;
  EXPECT_NE(err_.find("54 conversations for training and 6 for validation"), std::string::npos)
      << err_;
  std::vector<double> losses;
  for (const nlohmann::json& record : io::read_jsonl(path("whole") / "log.jsonl"))
    if (record.contains("loss")) losses.push_back(record["loss"].get<double>());
  ASSERT_EQ(losses.size(), 8u);
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_EQ(read_file(path("whole") / "chat_template.jinja"), kTrainingTemplate);

  fs::copy(path("whole"), path("parts"), fs::copy_options::recursive);
  fs::remove_all(path("parts") / "checkpoint-000008");
  fs::remove(path("chat.jinja"));  // the checkpoint has it
  ASSERT_EQ(run({"train", "--resume", path("parts").string()}), 0) << err_;
  EXPECT_EQ(loss_series("parts"), loss_series("whole"));
  EXPECT_EQ(read_file(path("parts") / "model.safetensors"),
            read_file(path("whole") / "model.safetensors"));
}

// The figures of train for its validation file.
TEST_F(ChatTraining, EvalGivesTheLossOfTheAssistantsTurns) {
  std::string lines;
  for (int i = 0; i < 9; ++i)
    lines += fmt::format(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"say {0}\"}}, "
        "{{\"role\": \"assistant\", \"content\": \"no\", \"weight\": 0}}, "
        "{{\"role\": \"user\", \"content\": \"again\"}}, "
        "{{\"role\": \"assistant\", \"content\": \"yes, {1}\"}}]}}\n",
        i, std::string(static_cast<size_t>(i), 'x'));
  const std::string held = path("held.jsonl").string();
  write_file_atomically(held, lines);
  const auto trained = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> all{"--val-data", held, "--eval-batches", "0",
                                 "--samples",  "0",  "--json"};
    all.insert(all.end(), more.begin(), more.end());
    EXPECT_EQ(run(learn(name, all)), 0) << err_;
    return json();
  };
  const auto expect_equal = [&](const std::vector<std::string>& args, const auto& reported) {
    ASSERT_EQ(run(args), 0) << err_;
    EXPECT_NEAR(json()["loss"].template get<double>(), reported["val_loss"].template get<double>(),
                1e-6);
    EXPECT_EQ(json()["tokens"], reported["val_tokens"]);
  };
  const auto full = trained("full", {});
  const std::string model = path("full").string(), chat = path("chat.jinja").string();
  expect_equal({"eval", model, "--data", held, "--json"}, full);
  expect_equal({"eval", model, held, "--batch-size", "3", "--json"}, full);
  const auto lora = trained("lora", {"--lora-r", "4", "--lora-dropout", "0.2"});
  expect_equal({"eval", path("lora").string(), "--data", held, "--json"}, lora);
  expect_equal({"eval", path("base").string(), "--adapter", path("lora").string(), "--data", held,
                "--chat-template", chat, "--json"},
               lora);
  ASSERT_EQ(run({"eval", model, held}), 0) << err_;
  EXPECT_NE(out_.find("of the assistant in "), std::string::npos) << out_;
  const std::vector<std::string> two{"launch", "-n",           "2", "eval",  model, "--data",
                                     held,     "--batch-size", "2", "--json"};
  expect_equal(two, full);

  const auto refused = [&](const std::vector<std::string>& args, const char* why, int code) {
    EXPECT_EQ(run(args), code) << why;
    EXPECT_NE(err_.find(why), std::string::npos) << err_;
  };
  write_file_atomically(path("rows.jsonl"), "{\"text\": \"a text that is long enough\"}\n");
  refused({"eval", model, "--data", path("rows.jsonl").string()}, "for rows of text take --text",
          2);
  EXPECT_EQ(run({"eval", model, path("rows.jsonl").string()}), 0) << err_;
  // A column of text makes such rows text.
  write_file_atomically(path("both.jsonl"),
                        "{\"prompt\": \"a\", \"completion\": \"a text of some length\"}\n");
  EXPECT_EQ(run({"eval", model, path("both.jsonl").string(), "--text-column", "completion"}), 0)
      << err_;
  EXPECT_NE(out_.find("bits per byte"), std::string::npos) << out_;
  refused({"eval", model, "--data", path("both.jsonl").string(), "--text-column", "completion"},
          "--text-column: the file holds conversations", 2);
  refused({"eval", model, path("rows.jsonl").string(), "--chat-template", chat},
          "--chat-template is for a .jsonl file of conversations", 2);
  refused({"eval", model, held, "--dpo-beta", "0.2"}, "--dpo-beta is for a .jsonl file of pairs",
          2);
  refused({"eval", path("base").string(), held}, "has no chat template", 1);
  refused({"eval", model, held, "--context", "8"}, "no conversation fits into the context", 1);
}

TEST_F(ChatTraining, BadInputIsRefused) {
  const auto refused = [&](const std::vector<std::string>& args, const char* why, int code) {
    EXPECT_EQ(run(args), code);
    EXPECT_NE(err_.find(why), std::string::npos) << err_;
  };
  refused({"train", "--task", "chat", "--data", path("chats.jsonl").string()},
          "--task chat starts from a trained model", 2);
  refused({"train", "--chat-template", "x.jinja"}, "it needs --task chat", 2);
  std::vector<std::string> without = learn("a");
  without.erase(std::find(without.begin(), without.end(), "--chat-template"),
                std::find(without.begin(), without.end(), "--output-dir"));
  refused(without, "has no chat template", 1);
  refused(learn("b", {"--context", "8"}), "no conversation fits into the context of 8 tokens", 1);
  refused(learn("c", {"--sampling", "epoch"}), "works with --sampling documents", 2);
}

}  // namespace
}  // namespace brrr::test
