#pragma once
// What `brrr generate` makes the answers to a prompt with: the folder's model, the way that tokens
// are chosen, and what ends a text.

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
#include "sampling/stop_strings.h"

namespace brrr::cli {

/// How tokens are chosen: options that were given come before the folder's, which come before our
/// defaults.
infer::Sampling sampling_of(const infer::GenerateOptions& options,
                            const io::GenerationSettings& folder);
/// The tokens that end a text.
std::set<int32_t> text_ends(const io::ModelFolder& model);
/// Where an empty prompt begins. Throws UserError (exit 2) for a model without such a token.
std::vector<int32_t> begin_of_text(const io::ModelFolder& model);
/// Throws UserError if the folder has none.
io::ChatTemplate chat_template_of(const io::ModelFolder& model, bool with_tools);
/// The most tokens that follow a prompt of so many: as the options say, else as the folder does,
/// else our default. Throws UserError where the folder leaves none.
int64_t most_new_tokens(const infer::GenerateOptions& options, const io::ModelFolder& model,
                        int64_t prompt);

/// A text that tokens continue, until one of its ends comes.
class GrowingText {
 public:
  /// The tokens of `prompt` come first, because decoders treat the beginning of a text differently.
  GrowingText(const io::Tokenizer& tokenizer, std::span<const int32_t> prompt,
              const std::set<int32_t>& ends, std::vector<std::string> stop);
  /// Takes a token and returns the text that is certain now.
  std::string add(int32_t token);
  /// Returns what was held back.
  std::string finish();
  bool has_ended() const { return has_ended_ || stop_.found(); }
  const std::string& prompt() const { return prompt_; }
  const std::string& text() const { return text_; }
  /// Without the token that ended it.
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  const std::set<int32_t>& ends_;
  io::TextStream stream_;
  infer::StopStrings stop_;
  std::string prompt_, text_;
  std::vector<int32_t> ids_;
  bool has_ended_ = false;
};

/// Adds tokens until one of them ends the text or completes a stop string.
void add_until_stop(GrowingText& text, std::span<const int32_t> tokens);
/// Throws UserError (exit 2) for a --context that the model does not have or that has no room.
void check_context(const infer::GenerateOptions& options, const io::ModelFolder& model);
/// Notes on standard error which generation settings of the folder are not supported.
void note_ignored_settings(const io::ModelFolder& model);
/// The most tokens that --prompt-lookup guesses in a step of so many texts.
int64_t most_guessed_tokens(const infer::GenerateOptions& options, int64_t texts);

class TextMaker {
 public:
  /// `model` and `options` outlive it. Notes on standard error what the folder asks for and is not
  /// done.
  TextMaker(const infer::GenerateOptions& options, const io::ModelFolder& model);

  struct Text {
    std::string said, text;    // the prompt as it is read, and what continues it
    std::vector<int32_t> ids;  // without the token that ended it
  };
  /// The answers from here on draw the random numbers of sample `number` and those behind it.
  void begin_answer(int64_t number) { first_sample_ = number; }

  /// Gets the text of a sample as it comes, with `ends` once, at its end.
  using OnText = std::function<void(int64_t sample, std::string_view text, bool ends)>;
  /// Makes `samples` answers to the prompt, several at once where the backend can. `echoes`: with
  /// the prompt before them. `stops` is asked at every token.
  std::vector<Text> make(std::span<const int32_t> prompt, int64_t samples, bool echoes,
                         const OnText& on_text, const std::function<bool()>& stops = {});

  /// The end of a turn may have a token of its own, and the tokenizer knows it.
  void end_at(int32_t token) { ends_.insert(token); }
  const char* context_name() const {
    return options_.context > 0 ? "the context" : "the model's context";
  }
  int64_t context() const {
    return options_.context > 0 ? options_.context : model_.definition->sizes().context;
  }
  int64_t tokens() const { return tokens_; }
  double seconds() const { return seconds_; }
  double tokens_per_second() const;
  /// Says on standard error, once, what the texts so far could not be.
  void say_notes() const;

 private:
  using OnToken = std::function<bool(int64_t sample, int32_t token)>;
  /// Makes room for texts of so many positions, `samples` at once.
  void reserve(int64_t positions, int64_t samples);
  void run(std::span<const int32_t> prompt, int64_t samples, int64_t most, const OnToken& on_token);
  infer::Memory memory() const;
  /// The continuations that a beam search finds, at most `samples`, the best first.
  std::vector<Text> search(std::span<const int32_t> prompt, int64_t samples, int64_t most,
                           bool echoes, const OnText& on_text);

  const infer::GenerateOptions& options_;
  const io::ModelFolder& model_;
  infer::Sampling sampling_;
  std::set<int32_t> ends_;
  std::unique_ptr<infer::Batcher> batcher_;
  std::unique_ptr<infer::Generator> generator_;  // for --no-cache and where no batcher runs
  int64_t room_ = 0, at_once_ = 0;               // positions of a text, and texts
  int64_t first_sample_ = 0;
  bool has_slid_ = false;  // a text outgrew the context
  int64_t tokens_ = 0;
  double seconds_ = 0;
};

}  // namespace brrr::cli
