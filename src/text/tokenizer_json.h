#pragma once
// tokenizer.json, the form in which Hugging Face's library `tokenizers` keeps a tokenizer. What is
// not supported is refused by name and value.

#include <map>
#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace brrr::io {

/// `files` holds the text of "tokenizer.json" and, where the folder has them, of
/// "tokenizer_config.json" and "special_tokens_map.json", which name the tokens that begin and end
/// a text. `folder` goes into errors. Throws UserError that names the file, the field and the
/// value.
std::unique_ptr<Tokenizer> read_tokenizer_json(std::map<std::string, std::string> files,
                                               const std::string& folder);

}  // namespace brrr::io
