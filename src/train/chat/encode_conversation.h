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
  std::vector<uint8_t> learnt;  // for each id: 1 if it is a target
};

/// Whether any target is learnt; the first id is not a target.
bool learns(const EncodedConversation& conversation);

/// Renders conversations with a template and finds the ids of the assistant's turns. Those are the
/// output of the template's `generation` blocks or, in a template without them, the text that each
/// turn adds to the text that asks for it.
class ConversationEncoder {
 public:
  /// Encodes to at most `longest` ids each. The template and the tokenizer must outlive this
  /// object.
  ConversationEncoder(const io::ChatTemplate& chat, const io::Tokenizer& tokenizer, int64_t longest)
      : chat_(chat), tokenizer_(tokenizer), longest_(static_cast<size_t>(longest)) {}

  /// Encodes a conversation as one example. If it is too long, it becomes several, each with the
  /// system's message and whole exchanges, which begin with a turn of the user. Exchanges that are
  /// too long by themselves are left out, so the result may be empty. Throws UserError, which does
  /// not name the line, for errors of the template and if its text of earlier turns changes with
  /// later ones.
  std::vector<EncodedConversation> encode(const Conversation& conversation) const;
  /// Encodes a conversation as one example of any length. Throws UserError as encode() does.
  EncodedConversation encode_undivided(const Conversation& conversation) const;
  /// Returns the text that asks for the first answer to be learnt.
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
