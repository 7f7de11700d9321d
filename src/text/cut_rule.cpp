#include "text/cut_rule.h"

#include <algorithm>

#include "base/encoding/utf8.h"
#include "text/tokenizer_split.h"

namespace brrr::io {
namespace {

/// The symbol of the character that ends before `at`, or kSymbols when it may be white space:
/// invalid UTF-8 and control characters, on which implementations differ, are not sure.
size_t symbol_before(std::string_view text, size_t at) {
  const auto last = static_cast<uint8_t>(text[at - 1]);
  if (last < 0x80) return last > 0x20 && last < 0x7f ? last : kSymbols;
  size_t begin = at - 1;
  while (begin > 0 && at - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
  const DecodedChar c = decode_utf8(as_bytes(text.data() + begin), as_bytes(text.data() + at));
  const bool whole = c.code != kInvalidByte && begin + c.bytes == at;
  return whole && CharTable::get().of(c.code) != CharClass::kSpace ? kWideSymbol : kSymbols;
}

}  // namespace

const CutRule& CutRule::at_words() {
  static const CutRule rule = [] {
    CutRule r;
    for (const char after : kCutsBefore) {
      for (size_t before = 0x21; before < 0x7f; ++before)
        r.allow(before, static_cast<uint8_t>(after));
      r.allow(kWideSymbol, static_cast<uint8_t>(after));
    }
    return r;
  }();
  return rule;
}

size_t CutRule::next(std::string_view text, size_t from) const {
  if (never()) return text.size();
  for (size_t at = std::max<size_t>(from, 1); at < text.size(); ++at) {
    at = text.find_first_of(kCutsBefore, at);
    if (at == std::string_view::npos) break;
    const size_t before = symbol_before(text, at);
    if (before < kSymbols && allows(before, static_cast<uint8_t>(text[at]))) return at;
  }
  return text.size();
}

}  // namespace brrr::io
