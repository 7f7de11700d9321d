#pragma once
// Files of conversations (.jsonl, packed or not), one a line:
//   {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}
//   {"prompt": "...", "completion": "..."}    texts, or lists of messages; with "tools" or without
// A message of the assistant with "weight": 0 or "train": false is not learnt.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "folders/chat_template.h"
#include "train/tasks/train_task.h"

namespace brrr::train {

struct Conversation {
  int64_t line = 0;  // of the file, from 1
  std::vector<io::ChatMessage> messages;
  jinja::Value tools;
  size_t first_answer = 0;  // earlier messages are the prompt: they are not learnt

  /// Whether message `i` is an answer that is learnt: a message of the assistant behind the prompt,
  /// unless it has "weight": 0 (OpenAI) or "train": false (axolotl).
  bool is_learnt(size_t i) const;
};

/// What was read from a file.
template <typename Row>
struct RowFile {
  std::string name;  // for messages
  std::vector<Row> rows;
};

/// Throws UserError that names the line: invalid JSON, missing fields, an unknown role, an empty
/// turn, no answer to learn.
RowFile<Conversation> read_conversations(const fs::path& file);

/// Whether the name of a file ends with .jsonl, packed or not.
bool is_file_of_rows(const fs::path& file);
/// What the first row of such a file holds, by the names of its fields: conversations, preferences,
/// or text. `prefers_text`: a row with a field "text" holds text, whatever it has besides. Throws
/// UserError for a file without a row, or a row that is not an object.
TaskData data_of_rows(const fs::path& file, bool prefers_text = false);

/// use(row, number, where) for each line of a .jsonl file, packed or not, that is not blank;
/// `where` names file and line. Throws UserError for a line that is no JSON object: `example` shows
/// what it should be.
void each_json_line(const fs::path& file, const char* example,
                    const std::function<void(const nlohmann::ordered_json& row, int64_t number,
                                             const std::string& where)>& use);
/// "'prompt', 'text'": the names of a row's fields, for errors.
std::string fields_of(const nlohmann::ordered_json& row);
/// A list of messages, or a text, which is one message of `role`. `where` names the field.
std::vector<io::ChatMessage> messages_or_text(const nlohmann::ordered_json& field, const char* role,
                                              const std::string& where);
/// The row's "tools"; none where it has none.
jinja::Value tools_in(const nlohmann::ordered_json& row, const std::string& where);
/// Throws UserError for an unknown role, an empty turn, a mark that is none (is_learnt), and where
/// there is no answer to learn.
void check_messages(const Conversation& conversation, const std::string& where);

}  // namespace brrr::train
