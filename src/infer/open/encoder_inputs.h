#pragma once
// Texts as an encoder reads them: tokens in the form that the model wants, cut to its limit, and
// the encoder of an opened model folder.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "folders/model_folder.h"
#include "infer/encoder.h"
#include "infer/options.h"
#include "text/tokenizer.h"

namespace brrr::infer {

/// The tokens that a model reads of a text.
enum class TextForm {
  with_special_tokens,  // a text that is too long is cut, and its special tokens stay
  without_special_tokens,
  cut_at_end,  // with special tokens, cut with all others
};

/// The tokens of a text, or of a pair of them, at most `longest`. ModelInput::left_out counts those
/// that were cut. Only TextForm::with_special_tokens takes pairs.
io::ModelInput encoder_input(const io::Tokenizer& tokenizer, TextForm form, size_t longest,
                             std::string_view first,
                             std::optional<std::string_view> second = std::nullopt);

/// Throws UserError, with the text's place, for results that are NaN or infinite.
void check_finite(std::span<const float> numbers, const std::string& where);

/// The rows of inputs, which must outlive them.
std::vector<EncoderRow> rows_of(const std::vector<io::ModelInput>& inputs);

/// The encoder of an opened model, which must outlive it. `communicator`: of EncoderOptions.
Encoder encoder_of(const io::ModelFolder& model, const TextsOptions& options,
                   Communicator* communicator = nullptr);

/// Lines that are read, computed and printed together.
size_t window_lines(const TextsOptions& options);
/// Bytes of text after which a window ends, whatever its lines.
inline constexpr size_t kWindowBytes = size_t{1} << 20;
/// Returns the memory in bytes of one window of lines: text, tokens, and vectors of `width`
/// numbers.
int64_t bytes_of_texts(const TextsOptions& options, int64_t width);

/// How many tokens of a text the model reads by --max-length, the model's limit and `folder` (what
/// its files say, if anything). Throws UserError (exit 2) where --max-length is more than the model
/// takes.
int64_t longest_text(const TextsOptions& options, int64_t context,
                     std::optional<int64_t> folder = std::nullopt);

}  // namespace brrr::infer
