#pragma once
// The large parts of tokenizer.json, the vocabulary and the merges, found without a general JSON
// reader, which would take most of a start-up. Whatever has not the usual form is not found: then
// the general reader takes the whole file, and words the errors.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer_vocab_json.h"

namespace brrr::io {

struct TokenizerJsonParts {
  std::string rest;  // the file with an empty vocabulary and no merges: JSON, not checked yet
  VocabTokens vocab;
  std::vector<std::pair<std::string, std::string>> merges;
};

std::optional<TokenizerJsonParts> split_tokenizer_json(std::string_view text);

}  // namespace brrr::io
