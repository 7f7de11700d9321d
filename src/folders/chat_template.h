#pragma once
// How a model folder writes a conversation: the template in chat_template.jinja or in
// tokenizer_config.json, and the special tokens that it may name.

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace brrr::io {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
  /// All of it where there is more: what else a file says of a message. Else none.
  jinja::Value whole = {};
};

/// The messages of a file: a list of objects with a string as "role". Throws UserError, with the
/// file's name, for anything else.
std::vector<ChatMessage> read_messages(const fs::path& file);
/// The tools of a file: a list of objects. Throws UserError, with the file's name, for anything
/// else.
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

  /// The text of the conversation up to where the next answer begins; special tokens stand in it by
  /// name. Throws UserError for a conversation that the template refuses.
  std::string render(const std::vector<ChatMessage>& messages, const std::tm& now,
                     const jinja::Value& tools = {}) const;

 private:
  ChatTemplate(jinja::Template text, jinja::Template::Variables tokens)
      : template_(std::move(text)), tokens_(std::move(tokens)) {}

  jinja::Template template_;
  jinja::Template::Variables tokens_;  // "bos_token" and the like
};

}  // namespace brrr::io
