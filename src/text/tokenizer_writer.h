#pragma once
// Tokenizers that Brrr makes, written as tokenizer.json, so that other programs read them with the
// same ids, and read back as what they were.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe/tokenizer_bpe.h"
#include "text/tokenizer.h"

namespace brrr::io {

using TokenizerFiles = std::map<std::string, std::string>;

/// "tokenizer.json" and "tokenizer_config.json", in which `transformers` finds the class of the
/// tokenizer and its end of text.
TokenizerFiles files_of_bpe(const BpeModel& model);
/// Characters are a vocabulary of words: each is split off and looked up. `codes` by id.
TokenizerFiles files_of_characters(const std::vector<uint32_t>& codes);
/// Bytes are byte-level BPE without merges.
TokenizerFiles files_of_bytes();
void write_files(const TokenizerFiles& files, const std::filesystem::path& folder);

/// The byte or character tokenizer that this tokenizer.json was written of, else nullptr: then it
/// is to be read as any other. It may have been rewritten by another program.
std::unique_ptr<Tokenizer> read_written_tokenizer(std::string_view text);

/// In tokenizer_char.cpp. `codes` are distinct and ascending.
std::unique_ptr<Tokenizer> tokenizer_of_characters(const std::vector<uint32_t>& codes);

}  // namespace brrr::io
