#pragma once
// The charsmap of SentencePiece: which texts a normalizer replaces by which. It is a double array
// (a trie) over the texts to replace and a pool of NUL-ended replacements; tokenizer.model holds it
// as bytes, tokenizer.json in base64 ("Precompiled"). It comes from outside: every step in it is
// bounds-checked.
//
// The two libraries read it differently. `sentencepiece` replaces the longest text that it finds,
// from left to right: longest(). `tokenizers` goes by grapheme clusters: one of less than 6 bytes
// that begins with a text of the map is replaced as a whole, by what stands for the shortest such
// text; in all others each character is looked up by itself: append_normalized().

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::io {

class Precompiled {
 public:
  /// A map without entries.
  Precompiled() = default;
  /// `charsmap`: the bytes of the map. `where` names file and field in errors. Throws UserError for
  /// a map that is cut short or points outside itself.
  static Precompiled read(std::string_view charsmap, const std::string& where);
  /// The same from the value of "precompiled_charsmap" in tokenizer.json.
  static Precompiled read_base64(std::string_view text, const std::string& where);

  struct Found {
    std::string_view replacement;
    size_t length;  // bytes of the text that is replaced
  };
  /// The longest entry that `text` begins with.
  std::optional<Found> longest(std::string_view text) const;
  bool has_entries() const { return !units_.empty(); }
  /// May an entry begin with this byte?
  bool may_start(uint8_t byte) const { return starts_[byte]; }

  /// Appends `text` as the library `tokenizers` normalizes it. Bytes that are no UTF-8 stay.
  void append_normalized(std::string_view text, std::string& out) const;
  std::string normalized(std::string_view text) const {
    std::string out;
    append_normalized(text, out);
    return out;
  }
  /// What becomes of an ASCII character whose neighbours are ASCII; "\r\n" is the one pair of those
  /// that is replaced together.
  std::string normalized(uint8_t character) const;
  /// At most so many times as long does append_normalized() make a text.
  size_t most_growth() const { return most_growth_; }

 private:
  std::optional<std::string_view> shortest(std::string_view text) const;
  std::string_view replacement(uint32_t value) const;
  /// found(length, value) for every entry that `text` begins with, shortest first, until it returns
  /// false.
  template <typename Visit>
  void visit_entries(std::string_view text, Visit&& found) const;

  std::vector<uint32_t> units_;  // the double array
  std::string pool_;             // replacements, each ended by NUL
  std::array<bool, 256> starts_{};
  size_t most_growth_ = 1;
};

}  // namespace brrr::io
