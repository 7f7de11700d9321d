// Files of messages and of tools: what is read, in which order, and what is refused.

#include <gtest/gtest.h>

#include "folders/chat_template.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

class ChatFiles : public testing::Test {
 protected:
  fs::path put(const std::string& name, const std::string& text) {
    write_file_atomically(folder_ / name, text);
    return folder_ / name;
  }
  std::string rendered(const std::string& text, const std::vector<ChatMessage>& messages,
                       const jinja::Value& tools = {}) {
    put("chat_template.jinja", text);
    return ChatTemplate::read(folder_.path())->render(messages, std::tm{}, tools);
  }
  test::TempFolder folder_;
};

TEST_F(ChatFiles, ToolsAreWrittenAsTheFileHasThem) {
  const jinja::Value tools = read_tools(put(
      "tools.json",
      R"([{"type": "function", "function": {"name": "sum", "arguments": {"b": 1.0, "a": "<é>"}}}])"));
  // As json.dumps(ensure_ascii=False): members in the order of the file, nothing escaped.
  EXPECT_EQ(
      rendered("{{ tools | tojson }}", {}, tools),
      R"([{"type": "function", "function": {"name": "sum", "arguments": {"b": 1.0, "a": "<é>"}}}])");
  EXPECT_EQ(rendered("{{ tools[0].function.name }}", {}, tools), "sum");
  EXPECT_EQ(rendered("{{ 'yes' if tools else 'no' }}", {}), "no");
}

TEST_F(ChatFiles, MessagesKeepWhatElseTheyHold) {
  const std::vector<ChatMessage> messages = read_messages(put(
      "m.json",
      R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null, "tool_calls": [{"id": 7}]}])"));
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].content, "Hi");
  EXPECT_EQ(rendered("{% for m in messages %}{{ m.role }} {{ m.content }} {% if m.tool_calls "
                     "%}{{ m.tool_calls[0].id }}{% endif %}\n{% endfor %}",
                     messages),
            "user Hi assistant None 7");
}

TEST_F(ChatFiles, ATemplateForToolsCountsWhereThereAreTools) {
  put("tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  EXPECT_EQ(ChatTemplate::read(folder_.path())->render({}, std::tm{}), "D");
  EXPECT_EQ(ChatTemplate::read(folder_.path(), true)->render({}, std::tm{}), "T");
}

TEST_F(ChatFiles, WhatIsNoListOfObjectsIsRefused) {
  for (const auto& c : std::vector<std::pair<std::string, const char*>>{
           {"{}", "it holds an object; expected a list of tools"},
           {"[5]", "entry 1 is the number 5; expected an object"},
           {"[", "not valid JSON at line 1"},
           {R"([{"a": 1, "a": 2}])", "the key 'a' appears twice"},
           {"[{\"a\": 18446744073709551615}]", "f.json: "}}) {
    EXPECT_USER_ERROR(read_tools(put("f.json", c.first)), c.second);
    EXPECT_USER_ERROR(read_tools(put("f.json", c.first)), "f.json");
  }
  for (const auto& c : std::vector<std::pair<std::string, const char*>>{
           {"[]", "it has no message"},
           {R"("x")", "it holds the string 'x'; expected a list of messages"},
           {R"([{"role": "user", "content": "a"}, {"content": "b"}])",
            "message 2 has no \"role\""}}) {
    EXPECT_USER_ERROR(read_messages(put("f.json", c.first)), c.second);
    EXPECT_USER_ERROR(read_messages(put("f.json", c.first)), "f.json");
  }
}

}  // namespace
}  // namespace brrr::io
