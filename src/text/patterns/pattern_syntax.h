#pragma once
// The regular expressions of tokenizer.json, which are Oniguruma's (Ruby syntax), read once for two
// purposes: the same pattern in PCRE2's words, because \s, \w, . and classes mean other things
// there, and an analysis of where the text may be cut.
//
// The analysis follows Glushkov: `adjacent` holds every pair of characters that may stand side by
// side in a match. A cut between x and w is exact for a pattern when
//   1. (x, w) is not adjacent: no match passes the cut, and no attempt that has read x can read w,
//   so
//      the attempts before the cut fail and succeed as they do at the end of the text;
//   2. no look-ahead tells w from the end of the text: none can begin with w, match nothing or read
//      (x, w), so each fails at w as it fails at the end;
//   3. some alternative surely matches at w, so that w never lies in a gap between two matches.
// Look-behind and anchors see over the cut, so a pattern with them allows none.

#include <array>
#include <string>
#include <string_view>

#include "text/cut_rule.h"

namespace brrr::io {

struct PatternSyntax {
  std::string pcre2;  // compile with UTF, UCP and MULTILINE
  std::array<Symbols, kSymbols> adjacent{};
  Symbols looked_at;             // characters that a look-ahead tells from the end of the text
  Symbols sure;                  // characters at which some alternative surely matches
  bool local = true;             // false: what it matches may depend on text before or far behind
  bool matches_nothing = false;  // it may match the empty string
};

/// Throws UserError that begins with `where` and names the construct for what is not supported.
PatternSyntax read_pattern(std::string_view pattern, const std::string& where);

}  // namespace brrr::io
