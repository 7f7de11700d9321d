#include "folders/chat_template.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr const char* kTemplateFile = "chat_template.jinja";
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
std::optional<std::string> template_in(const Json& config, const std::string& file) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array())
    user_error("{}: chat_template is {}; expected a string or a list of templates with names", file,
               describe(*found));
  std::string names;
  for (const Json& entry : *found) {
    if (!entry.is_object() || !entry.value("name", Json()).is_string() ||
        !entry.value("template", Json()).is_string())
      user_error(
          "{}: chat_template has the entry {}; expected an object with a name and a template", file,
          describe(entry));
    const std::string name = entry["name"].get<std::string>();
    if (name == "default") return entry["template"].get<std::string>();
    names += (names.empty() ? "" : ", ") + in_quotes(name);
  }
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

}  // namespace

std::optional<ChatTemplate> ChatTemplate::read(const fs::path& folder) {
  const fs::path file = folder / kTemplateFile, config_file = folder / kConfigFile;
  const Json config = object_in(config_file);
  std::error_code ignored;
  const bool has_file = fs::exists(file, ignored);
  const std::optional<std::string> text =
      has_file ? read_file(file) : template_in(config, config_file.string());
  if (!text) return std::nullopt;
  return ChatTemplate(
      jinja::Template(*text, has_file ? file.string() : config_file.string() + ", chat_template"),
      tokens_in(config, object_in(folder / "special_tokens_map.json")));
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                 const std::tm& now) const {
  std::vector<jinja::Value> list;
  for (const ChatMessage& message : messages)
    list.push_back(jinja::Value::dict(
        {{"role", jinja::Value(message.role)}, {"content", jinja::Value(message.content)}}));
  jinja::Template::Variables variables = tokens_;
  variables.emplace_back("messages", jinja::Value::list(std::move(list)));
  variables.emplace_back("tools", jinja::Value());
  variables.emplace_back("documents", jinja::Value());
  variables.emplace_back("add_generation_prompt", jinja::Value(true));
  return template_.render(variables, now);
}

}  // namespace brrr::io
