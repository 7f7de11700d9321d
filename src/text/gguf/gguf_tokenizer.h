#pragma once
// The tokenizer inside a GGUF file (tokenizer.ggml.*): "llama" (SentencePiece's BPE), "gpt2"
// (byte-level BPE with a pre-tokenizer that is named) and "bert" (WordPiece). Control tokens and
// those that a user defined are found in texts, as tokenizer.json's added tokens are.

#include <memory>
#include <string>

#include "formats/gguf/gguf_file.h"
#include "text/tokenizer.h"

namespace brrr::io {

/// Throws UserError that names the key and what it holds. save() writes a tokenizer.json.
std::unique_ptr<Tokenizer> read_gguf_tokenizer(const GgufFile& file);

/// The text of the token that a key names ("tokenizer.ggml.bos_token_id"); nothing where there is
/// none.
std::optional<std::string> gguf_token(const GgufFile& file, std::string_view key);

}  // namespace brrr::io
