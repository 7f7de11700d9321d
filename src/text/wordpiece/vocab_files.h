#pragma once
// Tokenizers of encoder models as they were kept before tokenizer.json: vocab.txt (BERT), and
// vocab.json with merges.txt (RoBERTa). Each becomes the tokenizer.json that says the same.

#include <string>
#include <string_view>

#include "formats/json_file.h"

namespace brrr::io {

/// `vocab` is the text of vocab.txt, one token a line; `config` what tokenizer_config.json and
/// special_tokens_map.json hold (an object, maybe empty). `where` names the file in errors. Throws
/// UserError where a token is missing that the tokenizer needs, or a line is no UTF-8.
Json bert_tokenizer_json(std::string_view vocab, const Json& config, const std::string& where);

/// Do the configurations say that vocab.json and merges.txt are RoBERTa's, or its kin's? `config`
/// as above, `model` is config.json (maybe null).
bool is_roberta(const Json& config, const Json& model);
/// `vocab` and `merges` are the texts of the files, named `where_vocab` and `where_merges`.
Json roberta_tokenizer_json(std::string_view vocab, std::string_view merges, const Json& config,
                            const std::string& where_vocab, const std::string& where_merges);

}  // namespace brrr::io
