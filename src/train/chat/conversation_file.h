#pragma once
// Files of conversations (.jsonl, packed or not), one a line:
//   {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}
//   {"prompt": "...", "completion": "..."}    texts, or lists of messages; with "tools" or without

#include <cstdint>
#include <string>
#include <vector>

#include "folders/chat_template.h"

namespace brrr::train {

struct Conversation {
  int64_t line = 0;  // of the file, from 1
  std::vector<io::ChatMessage> messages;
  jinja::Value tools;
  size_t first_answer = 0;  // earlier messages are the prompt: they are not learnt
};

struct ConversationFile {
  std::string name;  // for messages
  std::vector<Conversation> conversations;
};

/// Throws UserError that names the line: no JSON, another form, an unknown role, an empty turn, no
/// answer to learn.
ConversationFile read_conversations(const fs::path& file);

}  // namespace brrr::train
