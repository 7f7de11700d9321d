#pragma once
// What the library `tokenizers` knows of every code point (library_tables.h), by look-up.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::io {

class CharTraits {
 public:
  enum Trait : uint8_t {
    kAccent = 1,        // StripAccents removes it
    kNonspacing = 2,    // BertNormalizer removes it as an accent
    kControl = 4,       // BertNormalizer's clean_text removes it
    kChinese = 8,       // BertNormalizer's handle_chinese_chars puts spaces around it
    kPunctuation = 16,  // Punctuation and BertPreTokenizer part a text at it
    kWord = 32,         // Whitespace takes it as a character of a word
    kMoves = 64,        // NFD decomposes it or moves it behind other marks
    kNoForm = 128,      // the normal forms leave it alone
  };
  /// One instance per process, immutable.
  static const CharTraits& get();
  uint8_t of(uint32_t code) const { return code < traits_.size() ? traits_[code] : 0; }
  bool has(uint32_t code, Trait trait) const { return (of(code) & trait) != 0; }

  /// The number of a code point's script, as UnicodeScripts knows it, or kNoScript.
  static constexpr int kNoScript = -1;
  static int script(uint32_t code);

  /// Appends the lower case of a code point beyond ASCII.
  void append_lowercase(uint32_t code, std::string& out) const;

 private:
  CharTraits();
  std::vector<uint8_t> traits_;
  bool page_has_capitals_[0x110000 / 256] = {};
};

}  // namespace brrr::io
