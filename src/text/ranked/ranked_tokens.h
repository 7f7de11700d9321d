#pragma once
// Byte-level BPE in the form of tiktoken: no merges are listed. Tokens have ranks, and while some
// two neighbours make a token together, those that make the one of the lowest rank are joined,
// leftmost first. A piece that is a token is that token.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace brrr::io {

struct RankedTokens {
  std::vector<std::string> tokens;   // bytes, by rank; every single byte is one
  std::string pattern;               // splits a text into pieces
  std::vector<std::string> special;  // names; no text makes them
  bool special_first = false;        // their ids come before the tokens', else behind them
  int32_t begin_of_text = -1, end_of_text = -1;  // ids
};

/// `files` is what save() writes; `where` names the file in errors. Throws UserError.
std::unique_ptr<Tokenizer> make_ranked_tokenizer(RankedTokens from,
                                                 std::map<std::string, std::string> files,
                                                 const std::string& where);

/// Is this text a tiktoken file: lines of base64 and a rank?
bool is_tiktoken(std::string_view text);
/// The tokens of a tiktoken file by rank. Throws UserError with the line.
std::vector<std::string> parse_tiktoken(std::string_view text, const std::string& where);

/// Llama 3's tokenizer.model, a tiktoken file: its split and its 256 special tokens stand in no
/// file. `files` holds "tokenizer.model"; `where` is its path, for errors. Throws UserError for a
/// file of another number of tokens.
std::unique_ptr<Tokenizer> read_llama3(std::map<std::string, std::string> files,
                                       const std::string& where);
/// Mistral's tekken.json: `files` holds it under that name; `where` is its path, for errors.
/// Special tokens have the first ids.
std::unique_ptr<Tokenizer> read_tekken(std::map<std::string, std::string> files,
                                       const std::string& where);

}  // namespace brrr::io
