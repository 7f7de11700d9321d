#pragma once
// Reads the characters, escapes and classes of Oniguruma's patterns; the base of what reads whole
// patterns.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/patterns/pattern_sets.h"

namespace brrr::io {

/// One character out of a set, in PCRE2's words: items of a class where that is enough, else an
/// expression that matches one character.
struct OneOf {
  std::string items;       // what stands between brackets
  std::string expression;  // where items do not do
  CharacterSet set;

  std::string text() const { return expression.empty() ? "[" + items + "]" : expression; }
};

class ClassReader {
 protected:
  ClassReader(std::string_view pattern, const std::string& where);

  [[noreturn]] void refuse(const char* what, std::string_view text) const;
  bool more() const { return p_ < end_; }
  bool take(std::string_view wanted);
  uint32_t code_point();

  static std::string literal(uint32_t code);
  /// Is there an escape for a set at the backslash p_?
  bool at_set() const;
  /// \s \S \w \W \d \D \h \H \p{..} \P{..}; p_ is at the letter. Some mean less in a class.
  OneOf escaped_set(bool in_class);
  /// The character that an escape means; p_ is behind the backslash.
  uint32_t escaped_character();
  /// [...]; p_ is behind the bracket.
  OneOf char_class();

  const std::string& where_;
  std::string_view whole_;
  const char* p_;
  const char* end_;
  bool ignore_case_ = false;

 private:
  uint32_t in_base(int base, ptrdiff_t least, ptrdiff_t most);
  OneOf negated(const OneOf& set) const;
  void add(OneOf& to, std::vector<std::string>& others, const OneOf& item) const;
  bool posix_name(OneOf& found);
  OneOf range_or_character(bool first);
  uint32_t class_character();
  OneOf class_operand(bool& first, bool& empty);

  int class_depth_ = 0;
};

}  // namespace brrr::io
