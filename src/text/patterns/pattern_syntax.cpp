#include "text/patterns/pattern_syntax.h"

#include <algorithm>
#include <charconv>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "formats/json_file.h"
#include "text/patterns/pattern_sets.h"

namespace brrr::io {
namespace {

constexpr size_t kLongestPattern = 10'000;
constexpr int kDeepestGroup = 100;
/// Does a backslash before this letter mean a set of characters?
bool names_set(char letter) {
  return std::string_view("sSwWdDpP").find(letter) != std::string_view::npos;
}

/// A part of a pattern: what it begins and ends with, and at which characters it surely matches.
struct Part {
  Symbols first, last, sure;
  bool nullable = false;
  bool skippable = false;  // nullable, and backtracking may choose nothing
  bool look = false;       // a look-around or an anchor
};

class PatternReader {
 public:
  PatternReader(std::string_view pattern, const std::string& where)
      : where_(where), whole_(pattern), p_(pattern.data()), end_(p_ + pattern.size()) {}

  PatternSyntax read() {
    if (whole_.size() > kLongestPattern)
      user_error("{}: a pattern of {} bytes; the longest that is read has {}", where_,
                 whole_.size(), kLongestPattern);
    for (const uint8_t *p = as_bytes(p_), *end = as_bytes(end_); p < end;) {
      const DecodedChar c = decode_utf8(p, end);
      if (c.code == kInvalidByte || c.code == 0) refuse("a NUL or a byte that is not UTF-8", "");
      p += c.bytes;
    }
    if (take("(?i)")) {
      ignore_case_ = true;
      out_.pcre2 += "(?i)";
    }
    const Part all = alternatives(0);
    if (p_ != end_) refuse("an unmatched", ")");
    out_.sure = all.sure;
    out_.matches_nothing = all.nullable;
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const char* what, std::string_view text) const {
    user_error("{}: the pattern {} has {} {}, which is not supported", where_, in_quotes(whole_),
               what, text);
  }

  bool more() const { return p_ < end_; }
  bool take(std::string_view wanted) {
    if (!std::string_view(p_, static_cast<size_t>(end_ - p_)).starts_with(wanted)) return false;
    p_ += wanted.size();
    return true;
  }
  uint32_t code_point() {
    const DecodedChar c = decode_utf8(as_bytes(p_), as_bytes(end_));
    p_ += c.bytes;
    return c.code;
  }

  void emit_literal(uint32_t code) {
    const bool plain = code >= 0x80 || (code >= '0' && code <= '9') ||
                       ((code | 0x20) >= 'a' && (code | 0x20) <= 'z');
    if (code < 0x20 || code == 0x7f) {
      out_.pcre2 += fmt::format("\\x{:02x}", code);
    } else {
      if (!plain) out_.pcre2 += '\\';
      append_utf8(out_.pcre2, code);
    }
  }

  Part alternatives(int depth) {
    if (depth > kDeepestGroup) refuse("groups nested deeper than", std::to_string(kDeepestGroup));
    Part all = sequence(depth);
    while (take("|")) {
      out_.pcre2 += '|';
      const Part next = sequence(depth);
      all.first |= next.first;
      all.last |= next.last;
      all.sure |= next.sure;
      all.nullable |= next.nullable;
      all.skippable |= next.skippable;
      all.look |= next.look;
    }
    return all;
  }

  void join(const Symbols& before, const Symbols& after) {
    for (size_t i = 0; i < kSymbols; ++i)
      if (before[i]) out_.adjacent[i] |= after;
  }

  Part sequence(int depth) {
    Part all;
    all.nullable = all.skippable = true;
    bool sure_so_far = false;  // `all.sure` needs the rest to be skippable
    while (more() && *p_ != '|' && *p_ != ')') {
      const Part next = repeated(depth);
      join(all.last, next.first);
      if (all.nullable) all.first |= next.first;
      all.last = next.nullable ? all.last | next.last : next.last;
      if (!next.skippable || next.look) {
        all.sure = all.skippable && !sure_so_far && !next.look ? next.sure : Symbols();
        sure_so_far = true;
      }
      all.nullable &= next.nullable;
      all.skippable &= next.skippable && !next.look;
      all.look |= next.look;
    }
    return all;
  }

  Part repeated(int depth) {
    Part part = atom(depth);
    if (!more()) return part;
    uint32_t least = 1, most = 1;
    const char* const begin = p_;
    bool counted = false;
    if (take("*")) {
      least = 0, most = 2;
    } else if (take("+")) {
      most = 2;
    } else if (take("?")) {
      least = 0;
    } else if (*p_ == '{' && count(least, most)) {
      counted = true;
    } else {
      return part;
    }
    if (part.look) refuse("a repeated look-around or anchor before", std::string_view(begin, 1));
    std::string_view suffix;
    if (take("?"))
      suffix = "?";
    else if (take("+"))
      suffix = "+";
    if (counted && (suffix == "+" || (suffix == "?" && least == most)))
      refuse("the quantifier", std::string_view(begin, static_cast<size_t>(p_ - begin)));
    if (more() && (*p_ == '*' || *p_ == '+' || *p_ == '?'))
      refuse("the quantifier", std::string_view(begin, static_cast<size_t>(p_ + 1 - begin)));
    if (!counted) out_.pcre2 += *begin;
    out_.pcre2 += suffix;
    if (most > 1) join(part.last, part.first);
    if (least > 1) part.sure.reset();
    if (least == 0) {
      part.nullable = true;
      part.skippable = suffix != "+";
      part.sure.reset();
    }
    return part;
  }

  /// {n}, {n,}, {,m}, {n,m}; false for a brace that is itself.
  bool count(uint32_t& least, uint32_t& most) {
    const char* p = p_ + 1;
    const auto number = [&](uint32_t& value) {
      const auto [stop, error] = std::from_chars(p, end_, value);
      if (error != std::errc()) return false;
      p = stop;
      return true;
    };
    const bool has_least = number(least);
    bool has_most = false;
    if (!has_least) least = 0;
    most = least;
    if (p < end_ && *p == ',') {
      ++p;
      has_most = number(most);
      if (!has_most) most = 0xffffffffu;
    }
    if (p == end_ || *p != '}' || (!has_least && !has_most)) return false;
    constexpr uint32_t kMostRepeats = 1000;
    if (least > kMostRepeats || (has_most && most > kMostRepeats) || least > most)
      refuse("the quantifier", std::string_view(p_, static_cast<size_t>(p + 1 - p_)));
    p_ = p + 1;
    out_.pcre2 += most == 0xffffffffu ? fmt::format("{{{},}}", least)
                  : most == least     ? fmt::format("{{{}}}", least)
                                      : fmt::format("{{{},{}}}", least, most);
    return true;
  }

  Part look(bool ahead, int depth) {
    const Part inside = alternatives(depth + 1);
    out_.looked_at |= inside.first;
    if (!ahead || inside.nullable || inside.look) out_.local = false;
    Part part;
    part.nullable = part.look = true;
    return part;
  }

  Part group(int depth) {
    static constexpr std::string_view kPrefixes[] = {"?:", "?>", "?=", "?!", "?<=", "?<!", "?i:"};
    std::string_view prefix;
    for (const std::string_view candidate : kPrefixes)
      if (take(candidate)) {
        prefix = candidate;
        break;
      }
    if (prefix.empty() && more() && *p_ == '?')
      refuse("the group",
             "(" + std::string(p_, std::min<size_t>(4, static_cast<size_t>(end_ - p_))));
    if (prefix.empty()) prefix = "?:";  // nobody asks for what a group captured
    out_.pcre2 += '(';
    out_.pcre2 += prefix;
    const bool outer_case = ignore_case_;
    if (prefix == "?i:") ignore_case_ = true;
    Part part;
    if (prefix == "?=" || prefix == "?!") {
      part = look(true, depth);
    } else if (prefix.starts_with("?<")) {
      part = look(false, depth);
    } else {
      part = alternatives(depth + 1);
    }
    ignore_case_ = outer_case;
    if (!take(")")) refuse("a group without its", ")");
    out_.pcre2 += ')';
    if (prefix == "?>") part.skippable = false, part.sure.reset();
    return part;
  }

  Part atom(int depth) {
    const char c = *p_;
    if (c == '(') {
      ++p_;
      return group(depth);
    }
    if (c == '[') {
      ++p_;
      return one_of(char_class());
    }
    if (c == '.') {
      ++p_;
      out_.pcre2 += "[^\\n]";
      return one_of(complement(range_of('\n', '\n')));
    }
    if (c == '^' || c == '$') {
      ++p_;
      out_.pcre2 += c;
      return anchor();
    }
    if (c == '*' || c == '+' || c == '?') refuse("nothing before the quantifier", {&c, 1});
    if (c != '\\') {
      const uint32_t code = code_point();
      emit_literal(code);
      return one_of(range_of(code, code));
    }
    ++p_;
    if (!more()) refuse("a backslash at its", "end");
    if (*p_ == 'A' || *p_ == 'z' || *p_ == 'Z') {
      out_.pcre2 += std::string("\\") + *p_++;
      return anchor();
    }
    const char escape = *p_;
    const bool is_set = names_set(escape);
    if (!is_set) {
      const uint32_t code = escaped_character();
      emit_literal(code);
      return one_of(range_of(code, code));
    }
    if (escape == 'W') {
      ++p_;
      out_.pcre2 += fmt::format("[^{}]", kWordItems);
      return one_of(complement(word_range()));
    }
    out_.pcre2 += '[';
    const CharacterSet set = escaped_set();
    out_.pcre2 += ']';
    return one_of(set);
  }

  Part anchor() {
    out_.local = false;
    Part part;
    part.nullable = part.look = true;
    return part;
  }

  Part one_of(CharacterSet set) {
    if (ignore_case_) {
      for (size_t c = 'a'; c <= 'z'; ++c)
        if (set.may[c] || set.may[c - 32]) set.may.set(c), set.may.set(c - 32);
      set.may.set(kWideSymbol);  // the Kelvin sign is a k, U+017F an s
    }
    Part part;
    part.first = part.last = set.may;
    part.sure = set.must;
    return part;
  }

  /// \s \S \w \d \D \p{..} \P{..} as items of a class; p_ is at the letter.
  CharacterSet escaped_set() {
    const char letter = *p_++;
    switch (letter) {
      case 's':
        out_.pcre2 += kSpaceItems;
        return space_range();
      case 'S':
        out_.pcre2 += kNoSpaceItems;
        return complement(space_range());
      case 'w':
        out_.pcre2 += kWordItems;
        return word_range();
      case 'd':
        out_.pcre2 += "\\p{Nd}";
        return property_range("Nd");
      case 'D':
        out_.pcre2 += "\\P{Nd}";
        return complement(property_range("Nd"));
      default:
        break;
    }
    if (letter != 'p' && letter != 'P') refuse("in a class", "\\" + std::string(1, letter));
    const char* const close = more() && *p_ == '{' ? std::find(p_, end_, '}') : end_;
    if (close == end_) refuse("a property without braces behind", "\\" + std::string(1, letter));
    std::string_view name(p_ + 1, static_cast<size_t>(close - p_ - 1));
    p_ = close + 1;
    bool negative = letter == 'P';
    if (name.starts_with('^')) {
      negative = !negative;
      name.remove_prefix(1);
    }
    for (const char c : name)
      if (!((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && c != '_')
        refuse("the property", in_quotes(name));
    out_.pcre2 += fmt::format("\\{}{{{}}}", negative ? 'P' : 'p', name);
    const CharacterSet r = property_range(name);
    return negative ? complement(r) : r;
  }

  /// The character that an escape means; p_ is behind the backslash.
  uint32_t escaped_character() {
    const uint32_t code = code_point();
    switch (code) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case 'e':
        return 0x1b;
      case 'x':
        if (take("{")) {
          const uint32_t value = hexadecimal(1, 6);
          if (!take("}")) refuse("an escape without its", "}");
          return value;
        }
        return hexadecimal(2, 2);
      case 'u':
        return hexadecimal(4, 4);
      default:
        break;
    }
    const bool letter_or_digit = code < 128 && ((code >= '0' && code <= '9') ||
                                                ((code | 0x20) >= 'a' && (code | 0x20) <= 'z'));
    if (letter_or_digit || code >= 128) {
      std::string shown = "\\";
      append_utf8(shown, code);
      refuse("the escape", shown);
    }
    return code;
  }

  uint32_t hexadecimal(ptrdiff_t least, ptrdiff_t most) {
    uint32_t value = 0;
    const auto [stop, error] = std::from_chars(p_, std::min(end_, p_ + most), value, 16);
    const bool surrogate = value >= 0xd800 && value < 0xe000;
    const bool broken_byte = most == 2 && value > 0x7f;
    if (error != std::errc() || stop - p_ < least || value > 0x10ffff || surrogate || broken_byte)
      refuse("a hexadecimal escape that means no character:",
             std::string_view(p_, static_cast<size_t>(stop - p_)));
    p_ = stop;
    return value;
  }

  /// [...]; p_ is behind the bracket.
  CharacterSet char_class() {
    const bool negative = take("^");
    out_.pcre2 += negative ? "[^" : "[";
    CharacterSet all;
    bool empty = true;
    while (!take("]")) {
      if (!more()) refuse("a class without its", "]");
      if (*p_ == '[') refuse("a class in a class: an unescaped", "[");
      if (take("&&")) refuse("an intersection of classes:", "&&");
      CharacterSet item;
      const bool is_set = *p_ == '\\' && p_ + 1 < end_ && names_set(p_[1]);
      if (is_set) {
        ++p_;
        item = escaped_set();
      } else {
        const uint32_t first = class_character();
        uint32_t last = first;
        const bool is_range = end_ - p_ >= 2 && *p_ == '-' && p_[1] != ']';
        if (is_range) {
          ++p_;
          if (*p_ == '[' || *p_ == '-') refuse("the range to", {p_, 1});
          if (*p_ == '\\' && p_ + 1 < end_ && names_set(p_[1])) refuse("a range to", {p_, 2});
          last = class_character();
          if (last < first) refuse("a range whose end comes before its", "beginning");
        }
        emit_literal(first);
        if (is_range) {
          out_.pcre2 += '-';
          emit_literal(last);
        }
        item = range_of(first, last);
      }
      all.may |= item.may;
      all.must |= item.must;
      empty = false;
    }
    if (empty) refuse("a class of no", "character");
    out_.pcre2 += ']';
    if (negative && ignore_case_) return {Symbols().set(), Symbols()};
    return negative ? complement(all) : all;
  }

  uint32_t class_character() {
    if (!take("\\")) return code_point();
    if (!more()) refuse("a backslash at its", "end");
    return escaped_character();
  }

  const std::string& where_;
  std::string_view whole_;
  const char* p_;
  const char* end_;
  bool ignore_case_ = false;
  PatternSyntax out_;
};

}  // namespace

PatternSyntax read_pattern(std::string_view pattern, const std::string& where) {
  return PatternReader(pattern, where).read();
}

}  // namespace brrr::io
