#pragma once
// What a tokenizer can learn from a text that does not fit the memory.

#include <memory>
#include <string>

#include "data/text_files.h"
#include "text/tokenizer.h"

namespace brrr::io {

/// make_char_tokenizer of the whole text, which is read once, in parallel.
std::unique_ptr<Tokenizer> make_char_tokenizer(const TextFiles& text);

/// About `bytes` of the text in pieces spread evenly over it; all of it when it is not longer.
std::string sample_text(const TextFiles& text, uint64_t bytes);

/// The ids of the whole text, file by file.
std::vector<int32_t> encode_all(const TextFiles& text, const Tokenizer& tokenizer);

}  // namespace brrr::io
