#pragma once
// Writes a tokenizer as metadata of a GGUF file (tokenizer.ggml.*): SentencePiece's BPE and single
// characters as "llama", byte-level BPE as "gpt2" with the name of a pre-tokenizer, WordPiece as
// "bert". The result is read back and must give the same tokens for a set of texts.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/gguf/gguf_output.h"
#include "text/tokenizer.h"

namespace brrr::io {

struct GgufVocabularyOptions {
  std::string where;                  // the model's folder, for errors
  int64_t size = 0;                   // rows of the model's table of tokens
  std::vector<int32_t> ends_of_text;  // as the model's configuration has them
};

/// Adds the keys. Returns what the file cannot say, one line each. Throws UserError for a tokenizer
/// that GGUF files have no form for, or whose tokens would differ.
std::vector<std::string> add_gguf_vocabulary(const Tokenizer& tokenizer,
                                             const GgufVocabularyOptions& options,
                                             GgufMetadata& out);

}  // namespace brrr::io
