#pragma once
// A regular expression that cuts texts, run by PCRE2 (compiled to machine code where it can).
// Immutable: any number of threads may use one. What a pattern costs per match is bounded, so that
// a hostile one ends in a UserError.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "text/patterns/pattern_syntax.h"

namespace brrr::io {

class SplitPattern {
 public:
  /// `pattern` is in Oniguruma's words, or a text that stands for itself. Throws UserError that
  /// begins with `where` for what is not supported.
  static SplitPattern regex(std::string_view pattern, const std::string& where);
  static SplitPattern literal(std::string_view text, const std::string& where);

  /// The first match at or behind `from`, as [begin, end). `text` must be UTF-8. Throws UserError
  /// when the match takes too many steps.
  std::optional<std::pair<size_t, size_t>> find(std::string_view text, size_t from) const;

  const std::string& source() const { return source_; }
  const PatternSyntax& syntax() const { return syntax_; }

 private:
  SplitPattern(std::string_view source, PatternSyntax syntax, const std::string& where);

  std::string source_, where_;
  PatternSyntax syntax_;
  std::shared_ptr<const void> code_;
};

}  // namespace brrr::io
