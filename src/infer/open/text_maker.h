#pragma once
// TextMaker: answers to a prompt by the model of a folder, with the folder's sampling settings,
// stop strings and end-of-text tokens, as `brrr generate` and the library make them.

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "folders/chat_template.h"
#include "folders/model_folder.h"
#include "infer/batcher.h"
#include "infer/generator.h"
#include "infer/options.h"
#include "models/causal_lm.h"
#include "sampling/stop_strings.h"

namespace brrr::infer {

/// Returns the sampling settings: given options override those of the folder, which override the
/// defaults.
Sampling sampling_of(const GenerateOptions& options, const io::GenerationSettings& folder);
/// The tokens that end a text: those of generation_config.json, else the tokenizer's end of text.
/// That also ends a turn of a chat, and so does the special token that the chat template writes
/// behind an answer.
std::set<int32_t> text_ends(const GenerateOptions& options, const io::ModelFolder& model);
/// The texts that end a text: those of --stop, else those of generation_config.json; and in a chat
/// what the template writes behind an answer, where it is not a special token. `own`: takes the
/// place of --stop for one prompt.
std::vector<std::string> stop_strings_of(
    const GenerateOptions& options, const io::ModelFolder& model,
    const std::optional<std::vector<std::string>>& own = std::nullopt);
/// Returns the tokens that stand for an empty prompt. Throws UserError (exit 2) for a model without
/// such a token.
std::vector<int32_t> begin_of_text(const io::ModelFolder& model);
/// Reads the chat template: that of the one adapter, where there is one and has a template, else
/// the model's, else that of the first adapter that has one. Throws UserError if there is none.
io::ChatTemplate chat_template_of(const GenerateOptions& options, const io::ModelFolder& model);
/// Returns how many tokens may follow a prompt of `prompt` tokens: --max-new-tokens, else the limit
/// of the folder, else the default. Throws UserError if the folder's max_length leaves none.
int64_t most_new_tokens(const GenerateOptions& options, const io::ModelFolder& model,
                        int64_t prompt);

/// A text to which tokens are appended until an end token or a stop string ends it.
class GrowingText {
 public:
  /// `prompt` is decoded first, because decoders treat the beginning of a text differently. `ends`
  /// must outlive this.
  GrowingText(const io::Tokenizer& tokenizer, std::span<const int32_t> prompt,
              const std::set<int32_t>& ends, std::vector<std::string> stop);
  /// Appends a token and returns the text that it completes. Text that may be the beginning of a
  /// stop string, or of a character, is held back.
  std::string add(int32_t token);
  /// Returns the text that was held back. Call it once, after the last token.
  std::string finish();
  bool has_ended() const { return has_ended_ || stop_.found(); }
  const std::string& prompt() const { return prompt_; }
  const std::string& text() const { return text_; }
  /// The tokens without an end token.
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  const std::set<int32_t>& ends_;
  io::TextStream stream_;
  StopStrings stop_;
  std::string prompt_, text_;
  std::vector<int32_t> ids_;
  bool has_ended_ = false;
};

/// Adds tokens until one of them ends the text or completes a stop string.
void add_until_stop(GrowingText& text, std::span<const int32_t> tokens);
/// Throws UserError (exit 2) for a --context that the model does not have or that has no room.
void check_context(const GenerateOptions& options, const io::ModelFolder& model);
/// Notes on standard error which generation settings of the folder are not supported.
void note_ignored_settings(const io::ModelFolder& model);
/// Returns how many tokens --prompt-lookup may guess in one step of `texts` texts.
int64_t most_guessed_tokens(const GenerateOptions& options, int64_t texts);

class TextMaker {
 public:
  /// `model` and `options` outlive it. Notes on standard error what the folder asks for and is not
  /// done.
  TextMaker(const GenerateOptions& options, const io::ModelFolder& model);

  struct Text {
    std::string said, text;    // the prompt as it is read, and what continues it
    std::vector<int32_t> ids;  // without the token that ended it
  };
  /// Which answers to a prompt are made. Each number has random numbers of its own.
  struct Samples {
    int64_t first = 0, count = 1;
  };
  /// Gets further text of an answer, counted from 0, and whether it ends there.
  using OnText = std::function<void(int64_t answer, std::string_view text, bool ends)>;
  /// Makes answers to the prompt, several at once if the backend can. `echoes`: the prompt stands
  /// before each of them. `stops` is asked at every token.
  std::vector<Text> make(std::span<const int32_t> prompt, const Samples& samples, bool echoes,
                         const OnText& on_text, const std::function<bool()>& stops = {});

  const char* context_name() const {
    return options_.context > 0 ? "the context" : "the model's context";
  }
  int64_t context() const {
    return options_.context > 0 ? options_.context
                                : models::longest_generated_text(model_.definition->sizes());
  }
  int64_t tokens() const { return tokens_; }
  double seconds() const { return seconds_; }
  double tokens_per_second() const;
  /// Says on standard error, once, what the texts so far could not be.
  void say_notes() const;

 private:
  using OnToken = std::function<bool(int64_t answer, int32_t token)>;
  /// Builds a batcher or a generator for `count` texts of so many positions, unless there is one.
  void reserve(int64_t positions, int64_t count);
  void run(std::span<const int32_t> prompt, const Samples& samples, int64_t most,
           const OnToken& on_token);
  Memory memory() const;
  /// Returns the continuations that a beam search finds, at most `count`, the best first.
  std::vector<Text> search(std::span<const int32_t> prompt, int64_t count, int64_t most,
                           bool echoes, const OnText& on_text);

  const GenerateOptions& options_;
  const io::ModelFolder& model_;
  Sampling sampling_;
  std::set<int32_t> ends_;
  std::unique_ptr<Batcher> batcher_;
  std::unique_ptr<Generator> generator_;  // for --no-cache and where no batcher runs
  int64_t room_ = 0, at_once_ = 0;        // positions of a text, and texts
  bool has_slid_ = false;                 // a text outgrew the context
  int64_t tokens_ = 0;
  double seconds_ = 0;
};

}  // namespace brrr::infer
