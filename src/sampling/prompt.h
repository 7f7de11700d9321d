#pragma once
// Where a text begins.

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace brrr::infer {

/// Where a text begins when nothing was asked for: the begin-of-text token where the tokenizer puts
/// one before texts, else a newline, or the first token of a vocabulary that has none.
std::vector<int32_t> default_prompt(const io::Tokenizer& tokenizer);

}  // namespace brrr::infer
