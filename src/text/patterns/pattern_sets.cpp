#include "text/patterns/pattern_sets.h"

#include <algorithm>

namespace brrr::io {
namespace {

/// The general category of an ASCII character, two letters.
std::string_view category(char c) {
  if (c >= 'A' && c <= 'Z') return "Lu";
  if (c >= 'a' && c <= 'z') return "Ll";
  if (c >= '0' && c <= '9') return "Nd";
  if (c < ' ' || c == 0x7f) return "Cc";
  switch (c) {
    case ' ':
      return "Zs";
    case '_':
      return "Pc";
    case '-':
      return "Pd";
    case '(':
    case '[':
    case '{':
      return "Ps";
    case ')':
    case ']':
    case '}':
      return "Pe";
    case '$':
      return "Sc";
    case '+':
    case '<':
    case '=':
    case '>':
    case '|':
    case '~':
      return "Sm";
    case '^':
    case '`':
      return "Sk";
    default:
      return "Po";
  }
}

}  // namespace

CharacterSet complement(const CharacterSet& r) { return {~r.must, ~r.may}; }

CharacterSet range_of(uint32_t first, uint32_t last) {
  CharacterSet r;
  for (uint32_t c = first; c <= std::min<uint32_t>(last, 127); ++c) r.may.set(c);
  r.must = r.may;
  if (last > 127) r.may.set(kWideSymbol);
  return r;
}

CharacterSet space_range() {
  CharacterSet r = range_of(9, 13);
  r.may.set(' ');
  r.must = r.may;
  return r;
}

CharacterSet word_range() {
  CharacterSet r = range_of('0', '9');
  for (const auto& more : {range_of('A', 'Z'), range_of('a', 'z'), range_of('_', '_')})
    r.may |= more.may;
  r.must = r.may;
  r.may.set(kWideSymbol);
  return r;
}

CharacterSet property_range(std::string_view name) {
  CharacterSet r;
  r.may.set(kWideSymbol);
  const bool is_category = !name.empty() && name.size() <= 2 &&
                           std::string_view("LMNPSZC").find(name[0]) != std::string_view::npos;
  if (is_category) {
    for (char c = 0; c >= 0; ++c) {
      if (category(c).starts_with(name)) r.may.set(static_cast<size_t>(c));
      if (c == 127) break;
    }
    r.must = r.may;
    r.must.reset(kWideSymbol);
    return r;
  }
  for (const std::string_view foreign :
       {"Han", "Hiragana", "Katakana", "Hangul", "Cyrillic", "Greek", "Arabic", "Thai", "Hebrew"})
    if (name == foreign) return r;
  r.may.set();
  return r;
}

}  // namespace brrr::io
