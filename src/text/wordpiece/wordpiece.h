#pragma once
// WordPiece: a word becomes the longest token that it begins with, then the longest that continues
// it, and so on; a word that cannot be finished becomes one unknown token. WordLevel is the model
// whose tokens are whole words.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/cached_words.h"
#include "text/token_model.h"
#include "text/unigram/piece_trie.h"

namespace brrr::io {

struct WordPieceOptions {
  std::string continuing = "##";  // what the names of continuing tokens begin with
  size_t longest_word = 100;      // characters; a longer word is unknown
  int32_t unknown = -1;           // -1: an unknown word is an error
  bool whole_words = false;       // WordLevel
};

class WordPieceModel final : public TokenModel {
 public:
  /// `names` are the tokens by id; those of `added` are no part of the vocabulary.
  WordPieceModel(const std::vector<std::string_view>& names, const std::vector<bool>& added,
                 WordPieceOptions options);

  std::string kind() const override { return options_.whole_words ? "wordlevel" : "wordpiece"; }
  void encode(std::span<const std::string_view> pieces, const char* readable_end,
              std::vector<int32_t>& ids) const override;
  bool may_cut(uint32_t, uint32_t) const override { return false; }
  void save(const std::filesystem::path& folder) const override;
  void prepare(int64_t threads) const override { caches_.prepare(threads); }

 private:
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  void add_unknown(std::string_view word, std::vector<int32_t>& ids) const;

  WordPieceOptions options_;
  PieceTrie beginning_;   // all tokens
  PieceTrie continuing_;  // those that continue a word, without their prefix
  mutable WordCaches caches_;
};

}  // namespace brrr::io
