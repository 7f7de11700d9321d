// Chats: the folder's template, turns from standard input and from a terminal, and what is refused.

#include <poll.h>
#include <stdlib.h>

#include <chrono>

#include "e2e/run.h"

namespace brrr::test {
namespace {

constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}: {{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}";

class Chat : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(run(small_run("run",
                            {"--max-steps", "60", "--tokenizer", "byte", "--context", "256",
                             "--learning-rate", "0.01", "--save-steps", "0", "--eval-steps", "0"})),
              0)
        << err_;
  }
  void write(const std::string& name, const std::string& text) {
    write_file_atomically(path("run") / name, text);
    fs::remove(path("run") / "checksums.json");  // the change is meant
  }
  /// The words of a call without choices, so that texts can be compared.
  std::vector<std::string> generate(std::vector<std::string> more) const {
    std::vector<std::string> args{
        "generate",         "--model", path("run").string(), "--temperature", "0",
        "--max-new-tokens", "12"};
    put_options(args, more);
    return args;
  }
  /// What the model says behind a text.
  std::string continued(const std::string& text) {
    EXPECT_EQ(run(generate({"--prompt", text, "--json"})), 0) << err_;
    return json()["text"].get<std::string>().substr(text.size());
  }
};

TEST_F(Chat, TheFoldersTemplateWritesTheTurn) {
  EXPECT_EQ(run(generate({"--chat", "--prompt", "Hi"})), 1);
  EXPECT_NE(err_.find("has no chat template, neither chat_template.jinja nor"), std::string::npos)
      << err_;

  write("tokenizer_config.json",
        nlohmann::json{{"bos_token", {{"content", "<s>"}}}, {"chat_template", kTemplate}}.dump());
  const std::string said = "<s>s: Be kind.\nu: Hi\na:";
  const std::string expected = continued(said);
  const std::vector<std::string> chat{"--chat", "--system", "Be kind. ", "--prompt", " Hi"};
  std::vector<std::string> with_json = chat;
  with_json.push_back("--json");
  ASSERT_EQ(run(generate(with_json)), 0) << err_;
  EXPECT_EQ(json()["prompt"], said);
  EXPECT_EQ(json()["text"], expected);
  ASSERT_EQ(run(generate(chat)), 0) << err_;
  EXPECT_EQ(out_, expected + "\n");

  // One of a list, and the file that comes before it.
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "t"},
                              {"name": "default", "template": "{{ messages[0].content }}!"}]})");
  ASSERT_EQ(run(generate({"--chat", "--prompt", "Hi", "--json"})), 0) << err_;
  EXPECT_EQ(json()["prompt"], "Hi!");
  write("chat_template.jinja", "<{{ messages[0].content }}>\n");
  ASSERT_EQ(run(generate({"--chat", "--prompt", "Hi", "--json"})), 0) << err_;
  EXPECT_EQ(json()["prompt"], "<Hi>");

  // An answer ends at any token that generation_config.json says ends one.
  const std::string whole = continued("<Hi>");
  const auto last = static_cast<uint8_t>(whole[whole.size() / 2]);
  write("generation_config.json", fmt::format(R"({{"eos_token_id": [1, {}]}})", last));
  ASSERT_EQ(run(generate({"--chat", "--prompt", "Hi", "--json"})), 0) << err_;
  EXPECT_EQ(json()["text"].get<std::string>(),
            whole.substr(0, whole.find(static_cast<char>(last))));
}

// A line's stop strings take the place of --stop, and the end that the template writes stays.
TEST_F(Chat, StopStringsOfALineAreAddedToTheTemplatesEnd) {
  const std::string whole = continued("u: Hi\na:");
  ASSERT_GE(whole.size(), 8u);
  const std::string end = whole.substr(4, 2);
  write("chat_template.jinja",
        "{% for m in messages %}{{ m.role[0] }}:{{ ' ' if m.role == 'user' }}{{ m.content }}"
        "{{ '" +
            end +
            "' if m.role == 'assistant' }}\n{% endfor %}"
            "{% if add_generation_prompt %}a:{% endif %}");
  write_file_atomically(path("prompts.jsonl"),
                        "{\"prompt\": \"Hi\"}\n{\"prompt\": \"Hi\", \"stop\": \"~~~\"}\n"
                        "{\"prompt\": \"Hi\", \"stop\": [\"~~~\", \"" +
                            whole.substr(0, 1) + "\"]}\n");
  ASSERT_EQ(run(generate({"--chat", "--prompts", path("prompts.jsonl").string(), "--ordered"})), 0)
      << err_;
  std::vector<std::string> texts;
  for (size_t at = 0, next; (next = out_.find('\n', at)) != std::string::npos; at = next + 1)
    texts.push_back(nlohmann::json::parse(out_.substr(at, next - at))["text"].get<std::string>());
  const std::string expected = whole.substr(0, whole.find(end));
  EXPECT_EQ(texts, (std::vector<std::string>{expected, expected, ""})) << whole;
}

// An adapter brings the template that it was trained with, to its base and to what it is merged to.
TEST_F(Chat, AnAdapterBringsItsTemplate) {
  write_file_atomically(path("c.jsonl"), R"({"messages": [{"role": "user", "content": "Hi"},)"
                                         R"( {"role": "assistant", "content": "Oh"}]})"
                                         "\n");
  write_file_atomically(path("t.jinja"), std::string(kTemplate).substr(15));
  const std::string base = path("run"), tuned = path("tuned"), merged = path("merged");
  ASSERT_EQ(run({"train", "--task", "chat", "--data", path("c.jsonl"), "--val-data",
                 path("c.jsonl"), "--init-from", base, "--chat-template", path("t.jinja"),
                 "--lora-r", "4", "--max-steps", "2", "--output-dir", tuned}),
            0)
      << err_;
  const std::vector<std::string> asking{"--chat", "--prompt", "Hi", "--json"};
  std::vector<std::string> with_adapter = asking;
  with_adapter.insert(with_adapter.end(), {"--adapter", tuned});
  ASSERT_EQ(run(generate(with_adapter)), 0) << err_;
  EXPECT_EQ(json()["prompt"], "u: Hi\na:");
  const auto answer = json()["text"];
  ASSERT_EQ(run({"merge", base, "--adapter", tuned, "--output", merged}), 0) << err_;
  std::vector<std::string> of_merged = generate(asking);
  put_options(of_merged, {"--model", merged});
  ASSERT_EQ(run(of_merged), 0) << err_;
  EXPECT_EQ(json()["prompt"], "u: Hi\na:");
  EXPECT_EQ(json()["text"], answer);
}

TEST_F(Chat, FilesOfMessagesAndToolsAreAnswered) {
  write("chat_template.jinja",
        "{% if tools %}{{ tools | tojson }}{% endif %}" +
            std::string(kTemplate).substr(std::string("{{ bos_token }}").size()));
  write_file_atomically(path("m.json"), R"([{"role": "system", "content": "S"},
      {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Oh"},
      {"role": "user", "content": "Why"}])");
  write_file_atomically(path("t.json"), R"([{"b": 1, "a": "<é>"}])");
  const std::string messages = path("m.json").string(), tools = path("t.json").string();
  const std::string said = "s: S\nu: Hi\na: Oh\nu: Why\na:";
  const std::string answer = continued(said);
  ASSERT_EQ(run(generate({"--chat", "--messages", messages, "--json"})), 0) << err_;
  EXPECT_EQ(json()["prompt"], said);
  EXPECT_EQ(json()["text"], answer);
  ASSERT_EQ(run(generate({"--chat", "--messages", messages, "--tools", tools, "--json"})), 0)
      << err_;
  EXPECT_EQ(json()["prompt"], R"([{"b": 1, "a": "<é>"}])" + said);
  ASSERT_EQ(run(generate({"--chat", "--messages", messages, "--prompt", "And", "--json"})), 0)
      << err_;
  EXPECT_EQ(json()["prompt"], "s: S\nu: Hi\na: Oh\nu: Why\nu: And\na:");

  write_file_atomically(path("none.json"), R"({"name": "x"})");
  EXPECT_EQ(run(generate({"--chat", "--prompt", "a", "--tools", path("none.json").string()})), 1);
  EXPECT_NE(err_.find("none.json: it holds an object; expected a list of tools"), std::string::npos)
      << err_;
  write_file_atomically(path("said.json"), R"([{"role": "assistant", "content": "x"}])");
  EXPECT_EQ(run(generate({"--chat", "--messages", path("said.json").string()})), 2);
  EXPECT_NE(err_.find("ends with a message of the assistant"), std::string::npos) << err_;
  EXPECT_EQ(run(generate({"--chat", "--messages", messages, "--system", "x"})), 2);
  EXPECT_NE(err_.find("--system"), std::string::npos) << err_;
  EXPECT_EQ(run(generate({"--tools", tools, "--prompt", "a"})), 2);
  EXPECT_NE(err_.find("--tools needs --chat"), std::string::npos) << err_;
}

TEST_F(Chat, TheFolderSaysHowLongAnAnswerIs) {
  const auto tokens = [&](const std::string& config, std::vector<std::string> more = {}) {
    write("generation_config.json", config);
    std::vector<std::string> args{"generate",      "--model", path("run").string(),
                                  "--temperature", "0",       "--prompt",
                                  "abcde",         "--json"};
    args.insert(args.end(), more.begin(), more.end());
    EXPECT_EQ(run(args), 0) << err_;
    return json()["tokens"].get<int64_t>();
  };
  EXPECT_EQ(tokens(R"({"max_new_tokens": 7})"), 7);
  EXPECT_EQ(tokens(R"({"max_length": 9})"), 4) << "the prompt counts";
  EXPECT_EQ(tokens(R"({"max_new_tokens": 7, "max_length": 9})"), 7);
  EXPECT_EQ(tokens(R"({"max_new_tokens": 7})", {"--max-new-tokens", "3"}), 3);
  write("generation_config.json", R"({"max_length": 5})");
  EXPECT_EQ(run({"generate", "--model", path("run").string(), "--prompt", "abcde"}), 1);
  EXPECT_NE(err_.find("generation_config.json: max_length is 5 tokens, and the prompt has 5"),
            std::string::npos)
      << err_;
  write("generation_config.json", R"({"repetition_penalty": 1e-300})");
  EXPECT_EQ(run({"generate", "--model", path("run").string()}), 1);
  EXPECT_NE(err_.find("generation_config.json: repetition_penalty must be from 0.01 to 100"),
            std::string::npos)
      << err_;
  EXPECT_EQ(run(generate({"--repetition-penalty", "1e-300"})), 2);
  EXPECT_NE(err_.find("--repetition-penalty"), std::string::npos) << err_;
}

TEST_F(Chat, LinesOfStandardInputAreTurns) {
  write("chat_template.jinja", kTemplate);
  const std::string first = continued("u: One\na:");
  const auto trimmed = [](std::string text) {
    const size_t begin = text.find_first_not_of(" \n"), end = text.find_last_not_of(" \n");
    return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
  };
  const std::string second = continued("u: One\na: " + trimmed(first) + "\nu: Two\na:");
  write_file_atomically(path("turns"), "One\n\nTwo");
  ASSERT_EQ(run(generate({"--chat"}), {}, path("turns")), 0) << err_;
  EXPECT_EQ(out_, first + "\n" + second + "\n");
  EXPECT_EQ(err_.find("Ctrl-D"), std::string::npos) << err_;
  ASSERT_EQ(run(generate({"--chat", "--interactive", "--prompt", "One", "--no-stream"}), {},
                path("turns")),
            0)
      << err_;
  EXPECT_TRUE(out_.starts_with(first + "\n")) << out_;

  // Without a template the text goes on.
  const std::string one = continued("One"),
                    two = continued("One" + one + (one.ends_with('\n') ? "" : "\n") + "Two");
  ASSERT_EQ(run(generate({"--interactive"}), {}, path("turns")), 0) << err_;
  EXPECT_EQ(out_, one + "\n" + two + "\n");
}

TEST_F(Chat, WhatCannotBeIsRefused) {
  write("chat_template.jinja",
        "{% if messages | length > 1 %}\n{{ raise_exception('no ' ~ messages[2].content) }}"
        "{% endif %}x");
  write_file_atomically(path("turns"), "One\nTwo\n");
  EXPECT_EQ(run(generate({"--chat"}), {}, path("turns")), 1);
  EXPECT_NE(err_.find("chat_template.jinja, line 2, column 4: the chat template refuses the "
                      "conversation: no Two"),
            std::string::npos)
      << err_;
  write("chat_template.jinja", "{% include 'x' %}");
  EXPECT_EQ(run(generate({"--chat", "--prompt", "a"})), 1);
  EXPECT_NE(err_.find("line 1, column 4: the tag 'include' is not supported"), std::string::npos)
      << err_;
  fs::remove(path("run") / "chat_template.jinja");
  for (const auto& [config, expected] :
       {std::pair{R"({"chat_template": 5})", "chat_template is the number 5; expected a string"},
        {R"({"chat_template": [{"name": "rag", "template": ""}]})",
         "has the templates 'rag'; expected one that is named 'default'"},
        {R"({"chat_template": ["x"]})", "has the entry the string 'x'"}}) {
    write("tokenizer_config.json", config);
    EXPECT_EQ(run(generate({"--chat", "--prompt", "a"})), 1);
    EXPECT_NE(err_.find(expected), std::string::npos) << err_;
  }
  const std::pair<std::vector<std::string>, const char*> usages[] = {
      {{"--system", "x"}, "--system needs --chat"},
      {{"--chat", "--prompt", ""}, "--prompt: expected a turn"},
      {{"--chat", "--json"}, "--json: without --prompt the answers are text"},
      {{"--interactive", "--num-samples", "2"}, "--num-samples: with --interactive"},
      {{"--interactive", "--prompt-file", "-"}, "standard input"}};
  for (const auto& [args, expected] : usages) {
    EXPECT_EQ(run(generate(args)), 2) << expected;
    EXPECT_NE(err_.find(expected), std::string::npos) << err_;
  }
}

TEST_F(Chat, OldTurnsOfALongConversationAreForgotten) {
  write("chat_template.jinja", kTemplate);
  std::string turns;
  for (int i = 0; i < 8; ++i) turns += std::string(60, static_cast<char>('a' + i)) + "\n";
  write_file_atomically(path("turns"), turns);
  ASSERT_EQ(run(generate({"--chat", "--system", "S"}), {}, path("turns")), 0) << err_;
  EXPECT_NE(err_.find("its oldest turns are dropped"), std::string::npos) << err_;
  EXPECT_EQ(err_.find("are read"), std::string::npos) << err_;
}

/// A terminal whose other end the test holds.
class Terminal {
 public:
  Terminal() : fd_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    if (fd_ >= 0 && (::grantpt(fd_) != 0 || ::unlockpt(fd_) != 0)) close();
  }
  ~Terminal() { close(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  bool is_open() const { return fd_ >= 0; }
  fs::path name() const { return ::ptsname(fd_); }
  void type(const std::string& text) const {
    ASSERT_EQ(::write(fd_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

 private:
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int fd_;
};

TEST_F(Chat, ATerminalIsToldHowToLeave) {
  write("chat_template.jinja", kTemplate);
  const Terminal terminal;
  if (!terminal.is_open()) GTEST_SKIP() << "there is no pseudo-terminal";
  const auto says = [](const Child& child, const std::string& text, bool on_err = true) {
    for (int i = 0; i < 600; ++i) {
      if ((on_err ? child.err() : child.out()).find(text) != std::string::npos) return true;
      ::usleep(20'000);
    }
    return false;
  };
  {
    Child child(folder_.path(), generate({"--chat"}), {}, terminal.name());
    ASSERT_TRUE(says(child, "one turn per line; Ctrl-D ends, Ctrl-C stops an answer"));
    ASSERT_TRUE(says(child, "> "));
    terminal.type("One\n");
    ASSERT_TRUE(says(child, "> > ")) << "the answer may hold an end of line";
    child.send(SIGINT);
    ASSERT_TRUE(says(child, "Ctrl-C again, or Ctrl-D, ends")) << child.err();
    terminal.type("\x04");
    EXPECT_EQ(child.wait(), 0) << child.err();
    EXPECT_NE(child.err().find("12 tokens in"), std::string::npos) << child.err();
  }
  // An answer that would take long: the first Ctrl-C ends it, two end the program.
  std::vector<std::string> args = generate({"--chat"});
  args[6] = "100000000";
  Child child(folder_.path(), args, {}, terminal.name());
  ASSERT_TRUE(says(child, "> "));
  terminal.type("One\n");
  for (int i = 0; i < 600 && child.out().empty(); ++i) ::usleep(20'000);
  child.send(SIGINT);
  ASSERT_TRUE(says(child, "> > ") || says(child, "\n", false)) << child.err();
  terminal.type("Two\n");
  ::usleep(300'000);
  child.send(SIGINT);
  ::usleep(1'000);
  child.send(SIGINT);
  ::usleep(200'000);
  child.send(SIGINT);
  EXPECT_EQ(child.wait(), 130) << child.err();
}

}  // namespace
}  // namespace brrr::test
