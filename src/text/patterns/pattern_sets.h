#pragma once
// The sets of characters that patterns name: their items in PCRE2's words, and what they hold as
// the analysis of patterns sees it (pattern_syntax.h).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/cut_rule.h"

namespace brrr::io {

// White_Space, which Oniguruma's \s means; PCRE2's has U+180E, too.
inline constexpr std::string_view kSpaceItems =
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
    "\\x{3000}";
inline constexpr std::string_view kNoSpaceItems =
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-"
    "\\x{10ffff}";
// Oniguruma's \w in a class and, outside of one, where it also has superscripts and fractions of
// Latin 1: code point by code point for all that Unicode 14 assigns.
inline constexpr std::string_view kWordItems = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
inline constexpr std::string_view kWideWordItems =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
inline constexpr std::string_view kHexItems = "0-9A-Fa-f";

/// What a set of characters may contain and what it surely contains.
struct CharacterSet {
  Symbols may, must;
};

CharacterSet complement(const CharacterSet& r);
/// The code points from `first` to `last`.
CharacterSet range_of(uint32_t first, uint32_t last);
CharacterSet space_range();
CharacterSet word_range();
CharacterSet hex_range();

/// A named set: its items in a class of PCRE2, and what is known of it.
struct NamedSet {
  std::string items;
  CharacterSet set;
  bool has_case = false;  // \p{Lu} and the like: ignoring case changes what it matches in a class
};

/// A property in braces (`\p{Uppercase_Letter}`, `\p{Han}`, `\p{Alnum}`), upper and lower case,
/// spaces, '-' and '_' ignored; nothing for what is not known.
std::optional<NamedSet> property_set(std::string_view name);
/// A name of POSIX in a class: `[:punct:]`.
std::optional<NamedSet> posix_set(std::string_view name);

}  // namespace brrr::io
