#pragma once
// Conversations as token ids, and which of them are learnt: those of the assistant's turns.

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "train/chat/conversation_file.h"

namespace brrr::train {

/// A conversation, or a part of one that was too long.
struct EncodedConversation {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learnt;  // of each id: 1 where it is a target
};

/// Whether any target is learnt; the first id is not a target.
bool learns(const EncodedConversation& conversation);

/// Renders conversations with a template and finds the ids of the assistant's turns: what the
/// template's `generation` blocks write, or, in a template without them, what each turn adds to the
/// text that asks for it.
class ConversationEncoder {
 public:
  /// At most `longest` ids each. Both must outlive this.
  ConversationEncoder(const io::ChatTemplate& chat, const io::Tokenizer& tokenizer, int64_t longest)
      : chat_(chat), tokenizer_(tokenizer), longest_(static_cast<size_t>(longest)) {}

  /// The conversation as one example; one that is too long as several, each with the system's
  /// message and whole exchanges, which begin with a turn of the user. Exchanges that are too long
  /// by themselves are left out: none may be left. Throws UserError, without the place, for a
  /// template whose text of earlier turns changes with later ones, and for what it refuses.
  std::vector<EncodedConversation> encode(const Conversation& conversation) const;
  /// The conversation as one example of any length. Throws UserError as encode() does.
  EncodedConversation encode_undivided(const Conversation& conversation) const;
  /// The text that asks for the first answer to be learnt.
  std::string question_of(const Conversation& conversation) const;

 private:
  EncodedConversation encode_whole(const Conversation& conversation) const;
  /// The learnt answers among the ranges that the template's `generation` blocks wrote.
  std::vector<jinja::TextRange> learnt_ranges(const Conversation& conversation,
                                              const std::vector<jinja::TextRange>& generated) const;

  const io::ChatTemplate& chat_;
  const io::Tokenizer& tokenizer_;
  size_t longest_;
};

}  // namespace brrr::train
