#pragma once
// What `brrr generate` makes texts with: a generator of the folder's model, the way that tokens are
// chosen, and what ends a text.

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "folders/chat_template.h"
#include "folders/model_folder.h"
#include "infer/generator.h"
#include "infer/options.h"

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

class TextMaker {
 public:
  /// `model` and `options` outlive it. Notes on standard error what the folder asks for and is not
  /// done.
  TextMaker(const infer::GenerateOptions& options, const io::ModelFolder& model);

  struct Text {
    std::string said, text;    // the prompt as it is read, and what continues it
    std::vector<int32_t> ids;  // without the token that ended it
  };
  /// `on_text` gets the text as it comes; `echoes`: the prompt first. `stops` is asked at every
  /// token.
  Text make(std::span<const int32_t> prompt, int64_t sample, bool echoes,
            const std::function<void(std::string_view)>& on_text,
            const std::function<bool()>& stops = {});

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
  /// A generator with room for a prompt and what continues it, in tokens.
  infer::Generator& generator_for(int64_t prompt, int64_t more);

  const infer::GenerateOptions& options_;
  const io::ModelFolder& model_;
  infer::Sampling sampling_;
  std::set<int32_t> ends_;
  std::optional<infer::Generator> generator_;
  int64_t room_ = 0;
  bool has_slid_ = false;  // a text outgrew the context
  int64_t tokens_ = 0;
  double seconds_ = 0;
};

}  // namespace brrr::cli
