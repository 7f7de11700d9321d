#pragma once
// Turns of a user and a model, line by line from standard input: with a chat template, or as one
// text that both continue.

#include <functional>
#include <string>
#include <vector>

#include "folders/chat_template.h"
#include "infer/open/text_maker.h"

namespace brrr::cli {

using infer::TextMaker;

/// The turns so far, and the tokens that a model reads of them.
class Conversation {
 public:
  /// Without a template the turns are one text. All outlive it.
  Conversation(const infer::GenerateOptions& options, const io::ModelFolder& model,
               const io::ChatTemplate* chat);
  /// Takes a turn of the user. Throws UserError where the template or the tokenizer refuses it; the
  /// turn is forgotten then.
  std::vector<int32_t> ask(const std::string& text);
  /// The tokens of the messages that were given, the last of which is to be answered.
  std::vector<int32_t> given();
  /// What the model said.
  void answer(const std::string& text);

 private:
  std::vector<int32_t> prompt();
  /// The same, without the oldest turns where the context has no room for them and an answer.
  std::vector<int32_t> fitting_prompt();

  const infer::GenerateOptions& options_;
  const io::ModelFolder& model_;
  const io::ChatTemplate* chat_;
  std::vector<io::ChatMessage> messages_;
  jinja::Value tools_;
  std::string text_;    // without a template
  bool noted_ = false;  // that turns are forgotten
};

/// Reads turns until standard input ends and prints the answers. On a terminal it says how to
/// leave; Ctrl-C stops an answer there, and a second one ends the program. `first`: a turn that was
/// given already, or "".
void converse(TextMaker& maker, Conversation& conversation, const std::string& first,
              const infer::GenerateOptions& options);

}  // namespace brrr::cli
