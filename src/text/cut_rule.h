#pragma once
// Where a text may be cut so that its parts, encoded one by one, have the tokens of the whole. A
// rule knows pairs of characters between which a cut is always exact; a tokenizer derives its own
// from its parts (pattern_syntax.h and tokenizer_bpe.h say why the pairs that they allow are
// exact).

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace brrr::io {

/// Characters as a cut rule and the analysis of patterns see them: ASCII, and one symbol for all
/// characters beyond ASCII that are no white space.
inline constexpr size_t kWideSymbol = 128;
inline constexpr size_t kSymbols = 129;
/// The characters behind a cut: at_words() has these, and no other rule has more.
inline constexpr std::string_view kCutsBefore = " \t\n\r";
using Symbols = std::bitset<kSymbols>;

class CutRule {
 public:
  /// No cut is known to be exact.
  CutRule() = default;
  /// Between a character that is surely no white space and a space, tab or line end. Exact for
  /// GPT-2's pattern (tests derive it from the pattern), for bytes and for characters.
  static const CutRule& at_words();

  void allow(size_t before, uint8_t after, bool allowed = true) { safe_[before][after] = allowed; }
  bool allows(size_t before, uint8_t after) const { return safe_[before][after]; }
  bool never() const { return *this == CutRule(); }
  bool operator==(const CutRule&) const = default;

  /// The first position p >= from, p > 0, at which `text` may be cut, or text.size().
  size_t next(std::string_view text, size_t from) const;

 private:
  std::array<Symbols, kSymbols> safe_{};  // by the character before the cut
};

}  // namespace brrr::io
