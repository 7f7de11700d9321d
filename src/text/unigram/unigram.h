#pragma once
// Unigram: every token has a score, and a piece becomes the tokens whose scores have the greatest
// sum (Viterbi). A character that no token spells alone costs an unknown token, 10 below the least
// score.
//
// The libraries `tokenizers` and `sentencepiece` agree on this and differ in how they round the
// sums, on which tokens count, and on what an unknown character becomes; UnigramModel holds the
// choice. Use: fill a UnigramModel, make a UnigramEncoder of it, and hand that to
// TokenizerParts::model (from tokenizer.json: double_sums, tokens_are_found empty, fuse_unknown
// true, least_score the minimum of all scores, byte_ids where "byte_fallback" is true).

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe/tokenizer_cache.h"
#include "text/token_model.h"
#include "text/unigram/piece_trie.h"

namespace brrr::io {

/// Everything that defines a Unigram model.
struct UnigramModel {
  std::string bytes;                    // the text of all tokens, end to end: UTF-8
  std::vector<uint32_t> offsets = {0};  // [V + 1] into `bytes`
  std::vector<double> scores;           // [V]
  std::vector<bool> tokens_are_found;   // [V]: may the text hold it? Empty: all of them
  double least_score = 0;
  /// Sums are doubles, as in `tokenizers`; else floats, as in `sentencepiece`.
  bool double_sums = true;
  int32_t unknown = -1;      // -1: a text with an unknown character is refused
  bool fuse_unknown = true;  // a run of unknown characters is one
  /// By byte: the token for it where unknown text becomes bytes. Empty: it does not.
  std::vector<int32_t> byte_ids;

  uint32_t size() const { return static_cast<uint32_t>(offsets.size()) - 1; }
  std::string_view token(uint32_t id) const {
    return std::string_view(bytes).substr(offsets[id], offsets[id + 1] - offsets[id]);
  }
  void add(std::string_view token, double score) {
    bytes += token;
    offsets.push_back(static_cast<uint32_t>(bytes.size()));
    scores.push_back(score);
  }
};

class UnigramEncoder final : public TokenModel {
 public:
  explicit UnigramEncoder(UnigramModel model);
  std::string kind() const override { return "unigram"; }
  void encode(std::span<const std::string_view> pieces, const char* readable_end,
              std::vector<int32_t>& ids) const override;
  /// Sums over a whole piece round differently from sums over its parts.
  bool may_cut(uint32_t, uint32_t) const override { return false; }
  /// A model that was read is saved by the files that it was read from.
  void save(const std::filesystem::path& folder) const override;
  void prepare(int64_t threads) const override { caches_.prepare(threads); }

  const UnigramModel& model() const { return model_; }

 private:
  template <typename Sum>
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const;
  /// Appends the ids, last first, of a text that no path of tokens covers.
  void add_unknown_backwards(std::string_view text, std::vector<int32_t>& ids) const;

  UnigramModel model_;
  PieceTrie trie_;
  double unknown_score_;
  mutable WordCaches caches_;
};

}  // namespace brrr::io
