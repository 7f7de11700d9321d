#pragma once
// How a model folder writes a conversation: the template in chat_template.jinja or in
// tokenizer_config.json, and the special tokens that it may name.

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "text/jinja/template.h"

namespace brrr::io {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  /// Nothing where the folder has none; the file chat_template.jinja comes before
  /// tokenizer_config.json, which has one template or a list with one that is named "default".
  /// Throws UserError for a template that cannot be read, and for files of another form.
  static std::optional<ChatTemplate> read(const fs::path& folder);

  /// The text of the conversation up to where the next answer begins; special tokens stand in it by
  /// name. Throws UserError for a conversation that the template refuses.
  std::string render(const std::vector<ChatMessage>& messages, const std::tm& now) const;

 private:
  ChatTemplate(jinja::Template text, jinja::Template::Variables tokens)
      : template_(std::move(text)), tokens_(std::move(tokens)) {}

  jinja::Template template_;
  jinja::Template::Variables tokens_;  // "bos_token" and the like
};

}  // namespace brrr::io
