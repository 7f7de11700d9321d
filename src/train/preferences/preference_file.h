#pragma once
// Files of preferences (.jsonl, packed or not), a pair of answers in each line, as TRL has them:
//   {"prompt": "...", "chosen": "...", "rejected": "..."}    texts, or lists of messages
//   {"chosen": [...], "rejected": [...]}    conversations that begin with the same messages, which
//                                           are the prompt
// both with "tools" or without.

#include <cstdint>
#include <string>
#include <vector>

#include "train/chat/conversation_file.h"

namespace brrr::train {

/// Two conversations with the same prompt, which is all before `first_answer`.
struct Preference {
  Conversation chosen, rejected;
};
/// The conversation that stands for a pair in messages and samples (rendered_rows.h).
inline const Conversation& shown(const Preference& row) { return row.chosen; }

/// Throws UserError that names the line: invalid JSON, missing fields, no common prompt, equal
/// answers, and what check_messages() refuses.
RowFile<Preference> read_preferences(const fs::path& file);

}  // namespace brrr::train
