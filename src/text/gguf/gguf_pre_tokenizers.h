#pragma once
// The pre-tokenizers that tokenizer.ggml.pre of a GGUF file names. The file holds the name alone;
// the patterns are those of llama.cpp.

#include <string>
#include <string_view>
#include <vector>

#include "formats/json_file.h"

namespace brrr::io {

struct GgufPreTokenizer {
  Json json;                   // as tokenizer.json has it
  bool ignore_merges = false;  // a piece that is a token needs no merges
  bool adds_begin = false;     // where the file does not say
};

/// Throws UserError, which names those that are known, for another name; `where` names the file.
GgufPreTokenizer gguf_pre_tokenizer(std::string_view name, const std::string& where);

/// A name for each way of cutting that is known, the most frequent first.
std::vector<std::string_view> gguf_pre_tokenizer_names();

}  // namespace brrr::io
