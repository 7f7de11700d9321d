#pragma once
// How a model folder writes a conversation: the template in chat_template.jinja or in
// tokenizer_config.json, and the special tokens that it may name.

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/file.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace brrr::io {

/// Name of the file in which a model folder keeps its chat template. It takes precedence over the
/// template in tokenizer_config.json.
inline constexpr const char* kChatTemplate = "chat_template.jinja";

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
  /// All of it where there is more: what else a file says of a message. Else none.
  jinja::Value whole = {};
};

/// The messages of a list of objects that have a string as "role". `where` names it in errors.
/// Throws UserError for anything else.
std::vector<ChatMessage> messages_of(const nlohmann::ordered_json& list, const std::string& where);
/// The messages of a file that is such a list.
std::vector<ChatMessage> read_messages(const fs::path& file);
/// Tools are a list of objects. Throws UserError for anything else.
jinja::Value tools_of(const nlohmann::ordered_json& list, const std::string& where);
/// The tools of a file that is such a list.
jinja::Value read_tools(const fs::path& file);

/// The text of the template of a folder (not of a GGUF file) for conversations without tools;
/// nothing where there is none. Throws UserError for files of another form.
std::optional<std::string> chat_template_text(const fs::path& folder);

class ChatTemplate {
 public:
  /// Nothing where the folder has none; the file chat_template.jinja comes before
  /// tokenizer_config.json, which has one template or a list with one that is named "default" and
  /// perhaps another one, "tool_use", which counts where there are tools.
  /// Throws UserError for a template that cannot be read, and for files of another form.
  static std::optional<ChatTemplate> read(const fs::path& folder, bool with_tools = false);

  /// A template by itself; `name` stands for it in errors. Special tokens are those of the folder.
  ChatTemplate(const std::string& text, const std::string& name, const fs::path& folder);

  /// The text of the conversation up to where the next answer begins; special tokens stand in it by
  /// name. Throws UserError for a conversation that the template refuses.
  std::string render(const std::vector<ChatMessage>& messages, const std::tm& now,
                     const jinja::Value& tools = {}) const {
    return render_marked(messages, true, now, tools).text;
  }
  /// The same with the places of the answers where the template marks them (`generation` blocks).
  /// Without `asks`, the text ends with the last message.
  jinja::MarkedText render_marked(const std::vector<ChatMessage>& messages, bool asks,
                                  const std::tm& now, const jinja::Value& tools = {}) const;
  /// What the template writes behind an answer, without white space at its end; where that is
  /// nothing, what stands before the next question. "": nothing either, or the template refuses the
  /// messages that it is asked about.
  std::string end_of_answer() const;
  const std::string& text() const { return text_; }

 private:
  ChatTemplate(const std::string& text, const std::string& name, jinja::Template::Variables tokens)
      : text_(text), template_(text, name), tokens_(std::move(tokens)) {}

  std::string text_;
  jinja::Template template_;
  jinja::Template::Variables tokens_;  // "bos_token" and the like
};

}  // namespace brrr::io
