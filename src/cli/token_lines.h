#pragma once
// Streams of lines through a tokenizer: text to ids and back, in memory bounded by the longest
// line, on all threads.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string_view>

#include "text/tokenizer.h"

namespace brrr::cli {

struct CodeCounts {
  int64_t lines = 0, tokens = 0, bytes = 0;  // bytes of text
};

using Output = std::function<void(std::string_view)>;

/// Each line of `in`, its newline included, becomes one line of ids apart by spaces. Throws
/// UserError that names the line for text that the tokenizer lacks, and when reading fails.
CodeCounts encode_lines(const io::Tokenizer& tokenizer, const io::EncodeOptions& options,
                        std::FILE* in, const Output& write);

/// The reverse: each line of ids becomes their bytes, nothing added. Throws UserError that names
/// the line for anything but ids of the tokenizer.
CodeCounts decode_lines(const io::Tokenizer& tokenizer, bool skip_special_tokens, std::FILE* in,
                        const Output& write);

}  // namespace brrr::cli
