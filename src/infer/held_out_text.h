#pragma once
// The text on which a model's loss, or its vectors, are compared between number formats.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace brrr::infer {

struct HeldOutText {
  std::string text, description;
  bool is_default = false;
};

/// At most 256 KiB: the beginning of the files that --text names, or, for no files, of the last
/// tenth of the default text (data/corpus.h). Throws UserError as io::load_corpus() does.
HeldOutText read_held_out_text(const std::vector<std::string>& files,
                               const io::Tokenizer& tokenizer);

/// Throws UserError if most tokens, special tokens not counted, are the unknown token. `text`
/// describes the text in the message.
void check_known(std::span<const int32_t> ids, const io::Tokenizer& tokenizer,
                 const std::string& text);

/// The tokens of the text on which a model with so many parameters is compared: at most 8,192, and
/// fewer for a large model. Throws UserError for a text that is too short, that the tokenizer
/// refuses or that it mostly does not know.
std::vector<int32_t> tokens_to_compare_on(const HeldOutText& held, const io::Tokenizer& tokenizer,
                                          int64_t parameters);

/// The longest context in which those tokens are predicted.
inline constexpr int64_t kMostComparedContext = 512;

}  // namespace brrr::infer
