#pragma once
// What SentencePiece does with a text before its model sees it: replace what the charsmap lists,
// drop superfluous spaces, write spaces as U+2581, and put one before the text.

#include <string>
#include <string_view>

#include "text/precompiled.h"
#include "text/sentencepiece/sentencepiece_model.h"
#include "text/unigram/piece_trie.h"

namespace brrr::io {

class SentencePieceNormalizer {
 public:
  /// `where` goes into errors. Throws UserError for a broken charsmap.
  SentencePieceNormalizer(const SentencePieceModel& model, const std::string& where);

  /// The normalized text, which is UTF-8: bytes that are none become U+FFFD. `inside`: the text
  /// continues another, so nothing is put before it.
  std::string apply(std::string_view text, bool inside) const;
  /// Every character but the space stays as it is, whatever is around it.
  bool is_local() const { return !charsmap_.has_entries() && !remove_extra_; }

 private:
  struct Step {
    std::string_view to;
    size_t from;  // bytes
  };
  Step step(std::string_view text) const;

  Precompiled charsmap_;
  PieceTrie user_defined_;     // they stay as they are
  bool is_special_[256] = {};  // bytes at which step() must be asked
  bool add_dummy_, remove_extra_, escape_, space_is_suffix_;
};

}  // namespace brrr::io
