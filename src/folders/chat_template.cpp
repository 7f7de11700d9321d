#include "folders/chat_template.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "formats/gguf/gguf_file.h"
#include "formats/json_file.h"
#include "text/gguf/gguf_tokenizer.h"

namespace brrr::io {
namespace {

constexpr const char* kConfigFile = "tokenizer_config.json";

/// The object of a file; empty where there is none.
Json object_in(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return Json::object();
  Json json = parse_json(read_file(path), path.string());
  if (!json.is_object())
    user_error("{}: it holds {}; expected an object", path.string(), describe(json));
  return json;
}

/// The template in tokenizer_config.json, or nothing.
std::optional<std::string> template_in(const Json& config, const std::string& file,
                                       bool with_tools) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array())
    user_error("{}: chat_template is {}; expected a string or a list of templates with names", file,
               describe(*found));
  std::string names;
  std::optional<std::string> chosen;
  for (const Json& entry : *found) {
    if (!entry.is_object() || !entry.value("name", Json()).is_string() ||
        !entry.value("template", Json()).is_string())
      user_error(
          "{}: chat_template has the entry {}; expected an object with a name and a template", file,
          describe(entry));
    const std::string name = entry["name"].get<std::string>();
    if (name == "default" && !chosen) chosen = entry["template"].get<std::string>();
    if (name == "tool_use" && with_tools) chosen = entry["template"].get<std::string>();
    names += (names.empty() ? "" : ", ") + in_quotes(name);
  }
  if (chosen) return chosen;
  user_error("{}: chat_template has {}; expected one that is named 'default'", file,
             names.empty() ? "no template" : "the templates " + names);
}

jinja::Template::Variables tokens_in(const Json& config, const Json& map) {
  jinja::Template::Variables tokens;
  for (const char* key :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
    for (const Json* json : {&config, &map}) {
      Json token = json->value(key, Json());
      if (token.is_object()) token = token.value("content", Json());
      if (!token.is_string()) continue;
      tokens.emplace_back(key, jinja::Value(token.get<std::string>()));
      break;
    }
  return tokens;
}

std::optional<std::string> template_in_gguf(const GgufFile& file, bool with_tools) {
  const auto tools = file.text("tokenizer.chat_template.tool_use");
  const auto usual = file.text("tokenizer.chat_template");
  const auto chosen = with_tools && tools ? tools : usual;
  return chosen ? std::optional<std::string>(*chosen) : std::nullopt;
}

jinja::Template::Variables tokens_in_gguf(const GgufFile& file) {
  jinja::Template::Variables tokens;
  for (const auto& [key, name] : {std::pair{"bos_token_id", "bos_token"},
                                  {"eos_token_id", "eos_token"},
                                  {"unknown_token_id", "unk_token"},
                                  {"padding_token_id", "pad_token"}})
    if (const auto token = gguf_token(file, std::string("tokenizer.ggml.") + key))
      tokens.emplace_back(name, jinja::Value(*token));
  return tokens;
}

}  // namespace

namespace {

/// Refuses what is no list of objects. Objects keep the order of their keys: templates write them.
void check_objects(const nlohmann::ordered_json& list, const std::string& where, const char* what) {
  if (!list.is_array())
    user_error("{}: it holds {}; expected a list of {}", where, describe(Json(list)), what);
  for (size_t i = 0; i < list.size(); ++i)
    if (!list[i].is_object())
      user_error("{}: entry {} is {}; expected an object: it is a list of {}", where, i + 1,
                 describe(Json(list[i])), what);
}

jinja::Value value_of(const nlohmann::ordered_json& json, const std::string& where) {
  try {
    return jinja::Value::from_json(json);
  } catch (const UserError& e) {
    user_error("{}: {}", where, e.what());
  }
}

}  // namespace

std::vector<ChatMessage> messages_of(const nlohmann::ordered_json& list, const std::string& where) {
  std::vector<ChatMessage> messages;
  check_objects(list, where, "messages");
  if (list.empty()) user_error("{}: it has no message; expected at least one", where);
  for (size_t i = 0; i < list.size(); ++i) {
    const auto role = list[i].find("role"), content = list[i].find("content");
    if (role == list[i].end() || !role->is_string())
      user_error("{}: message {} has no \"role\"; expected a string such as \"user\"", where,
                 i + 1);
    ChatMessage& message = messages.emplace_back();
    message.role = role->get<std::string>();
    if (content != list[i].end() && content->is_string())
      message.content = content->get<std::string>();
    message.whole = value_of(list[i], where);
  }
  return messages;
}

std::vector<ChatMessage> read_messages(const fs::path& file) {
  return messages_of(parse_ordered_json(read_file(file), file.string()), file.string());
}

jinja::Value tools_of(const nlohmann::ordered_json& list, const std::string& where) {
  check_objects(list, where, "tools");
  return value_of(list, where);
}

jinja::Value read_tools(const fs::path& file) {
  return tools_of(parse_ordered_json(read_file(file), file.string()), file.string());
}

std::optional<std::string> chat_template_text(const fs::path& folder) {
  const fs::path file = folder / kChatTemplate, config_file = folder / kConfigFile;
  std::error_code ignored;
  if (fs::exists(file, ignored)) return read_file(file);
  return template_in(object_in(config_file), config_file.string(), false);
}

std::optional<ChatTemplate> ChatTemplate::read(const fs::path& folder, bool with_tools) {
  if (is_gguf_file(folder)) {
    const GgufFile file(folder);
    const auto text = template_in_gguf(file, with_tools);
    if (!text) return std::nullopt;
    return ChatTemplate(*text, folder.string() + ", tokenizer.chat_template", tokens_in_gguf(file));
  }
  const fs::path file = folder / kChatTemplate, config_file = folder / kConfigFile;
  const Json config = object_in(config_file);
  std::error_code ignored;
  const bool has_file = fs::exists(file, ignored);
  const std::optional<std::string> text =
      has_file ? read_file(file) : template_in(config, config_file.string(), with_tools);
  if (!text) return std::nullopt;
  return ChatTemplate(*text, has_file ? file.string() : config_file.string() + ", chat_template",
                      tokens_in(config, object_in(folder / "special_tokens_map.json")));
}

ChatTemplate::ChatTemplate(const std::string& text, const std::string& name, const fs::path& folder)
    : ChatTemplate(text, name,
                   is_gguf_file(folder)
                       ? tokens_in_gguf(GgufFile(folder))
                       : tokens_in(object_in(folder / kConfigFile),
                                   object_in(folder / "special_tokens_map.json"))) {}

jinja::MarkedText ChatTemplate::render_marked(const std::vector<ChatMessage>& messages, bool asks,
                                              const std::tm& now, const jinja::Value& tools) const {
  std::vector<jinja::Value> list;
  for (const ChatMessage& message : messages)
    list.push_back(
        message.whole.dict() != nullptr
            ? message.whole
            : jinja::Value::from_json({{"role", message.role}, {"content", message.content}}));
  jinja::Template::Variables variables = tokens_;
  variables.emplace_back("messages", jinja::Value::list(std::move(list)));
  variables.emplace_back("tools", tools);
  variables.emplace_back("documents", jinja::Value());
  variables.emplace_back("add_generation_prompt", jinja::Value(asks));
  return template_.render_marked(variables, now);
}

std::string ChatTemplate::end_of_answer() const {
  const std::string answer = "The answer.", next = "The next question?";
  const auto rendered = [&](bool goes_on) {
    std::vector<ChatMessage> messages{{"user", "The question?"}, {"assistant", answer}};
    if (goes_on) messages.push_back({"user", next});
    std::string text = render_marked(messages, false, {}).text;
    const size_t at = text.rfind(answer);
    return at == std::string::npos ? "" : text.substr(at + answer.size());
  };
  const auto without_space_behind = [](std::string text) {
    text.resize(text.find_last_not_of(" \n\r\t") + 1);
    return text;
  };
  try {
    std::string end = without_space_behind(rendered(false));
    if (!end.empty()) return end;
    end = rendered(true);
    return without_space_behind(end.substr(0, end.find(next)));
  } catch (const UserError&) {
    return "";
  }
}

}  // namespace brrr::io
