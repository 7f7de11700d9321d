#pragma once
// Character tokenizer: id i is the i-th smallest code point of a corpus. It is written as a
// tokenizer.json (tokenizer_writer.h); older folders have a char.json, which lists the characters:
// {"type": "char", "characters": ["\n", " ", "!", ...]}.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace brrr::io {

/// `text` is the whole of a char.json, `name` goes into errors. Throws UserError.
std::unique_ptr<Tokenizer> parse_char_json(std::string_view text, const std::string& name);

}  // namespace brrr::io
