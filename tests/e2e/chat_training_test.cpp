// train --task chat: conversations are learnt, the template goes with the model, a resumed run has
// the same bits.

#include "e2e/run.h"

namespace brrr::test {
namespace {

constexpr const char* kTemplate =
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
    write_file_atomically(path("chat.jinja"), kTemplate);
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
  EXPECT_EQ(read_file(path("whole") / "chat_template.jinja"), kTemplate);

  fs::copy(path("whole"), path("parts"), fs::copy_options::recursive);
  fs::remove_all(path("parts") / "checkpoint-000008");
  fs::remove(path("chat.jinja"));  // the checkpoint has it
  ASSERT_EQ(run({"train", "--resume", path("parts").string()}), 0) << err_;
  EXPECT_EQ(loss_series("parts"), loss_series("whole"));
  EXPECT_EQ(read_file(path("parts") / "model.safetensors"),
            read_file(path("whole") / "model.safetensors"));
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
