#include "text/patterns/class_reader.h"

#include <algorithm>
#include <charconv>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr int kDeepestClass = 20;

OneOf of_items(std::string_view items, const CharacterSet& set) {
  return {std::string(items), "", set};
}

}  // namespace

ClassReader::ClassReader(std::string_view pattern, const std::string& where)
    : where_(where), whole_(pattern), p_(pattern.data()), end_(p_ + pattern.size()) {}

void ClassReader::refuse(const char* what, std::string_view text) const {
  user_error("{}: the pattern {} has {} {}, which is not supported", where_, in_quotes(whole_),
             what, text);
}

bool ClassReader::take(std::string_view wanted) {
  if (!std::string_view(p_, static_cast<size_t>(end_ - p_)).starts_with(wanted)) return false;
  p_ += wanted.size();
  return true;
}

uint32_t ClassReader::code_point() {
  const DecodedChar c = decode_utf8(as_bytes(p_), as_bytes(end_));
  p_ += c.bytes;
  return c.code;
}

std::string ClassReader::literal(uint32_t code) {
  const bool plain = code >= 0x80 || (code >= '0' && code <= '9') ||
                     ((code | 0x20) >= 'a' && (code | 0x20) <= 'z');
  if (code < 0x20 || code == 0x7f) return fmt::format("\\x{:02x}", code);
  std::string text = plain ? "" : "\\";
  append_utf8(text, code);
  return text;
}

bool ClassReader::at_set() const {
  return end_ - p_ >= 2 && *p_ == '\\' &&
         std::string_view("sSwWdDhHpP").find(p_[1]) != std::string_view::npos &&
         ((p_[1] | 0x20) != 'p' || (end_ - p_ > 2 && p_[2] == '{'));
}

OneOf ClassReader::negated(const OneOf& set) const {
  if (set.expression.empty())
    return {"", "[^" + set.items + "]",
            ignore_case_ ? CharacterSet{Symbols().set(), Symbols()} : complement(set.set)};
  return {"", "(?:(?!" + set.expression + ")(?s:.))", complement(set.set)};
}

OneOf ClassReader::escaped_set(bool in_class) {
  const char letter = *p_++;
  switch (letter) {
    case 's':
      return of_items(kSpaceItems, space_range());
    case 'S':
      return of_items(kNoSpaceItems, complement(space_range()));
    case 'w':
      return of_items(in_class ? kWordItems : kWideWordItems, word_range());
    case 'W':
      return negated(of_items(in_class ? kWordItems : kWideWordItems, word_range()));
    case 'd':
      return of_items("\\p{Nd}", property_set("Nd")->set);
    case 'D':
      return of_items("\\P{Nd}", complement(property_set("Nd")->set));
    case 'h':
      return of_items(kHexItems, hex_range());
    case 'H':
      return negated(of_items(kHexItems, hex_range()));
    default:
      break;
  }
  const char* const close = std::find(p_, end_, '}');
  if (!more() || *p_ != '{' || close == end_)
    refuse("a property without braces behind", "\\" + std::string(1, letter));
  std::string_view name(p_ + 1, static_cast<size_t>(close - p_ - 1));
  p_ = close + 1;
  bool negative = letter == 'P';
  if (name.starts_with('^')) {
    negative = !negative;
    name.remove_prefix(1);
  }
  std::optional<NamedSet> found = property_set(name);
  if (!found) refuse("the property", in_quotes(name));
  if (found->items == kWordItems && !in_class) found->items = kWideWordItems;
  if (found->has_case && ignore_case_ && in_class)
    refuse("a property of case in a class that ignores case:", in_quotes(name));
  if (!negative) return of_items(found->items, found->set);
  // A single property has a complement that can stand in a class.
  if (found->items.starts_with("\\p{") && found->items.find('}') + 1 == found->items.size())
    return of_items("\\P" + found->items.substr(2), complement(found->set));
  return negated(of_items(found->items, found->set));
}

uint32_t ClassReader::in_base(int base, ptrdiff_t least, ptrdiff_t most) {
  uint32_t value = 0;
  const auto [stop, error] = std::from_chars(p_, std::min(end_, p_ + most), value, base);
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  const bool broken_byte = most <= 3 && value > 0x7f;
  if (error != std::errc() || stop - p_ < least || value > 0x10ffff || surrogate || broken_byte)
    refuse(base == 16 ? "a hexadecimal escape that means no character:"
                      : "an octal escape that means no character:",
           std::string_view(p_, static_cast<size_t>(stop - p_)));
  p_ = stop;
  return value;
}

uint32_t ClassReader::escaped_character() {
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
    case 'o':
      if (take("{")) {
        const uint32_t value = in_base(code == 'x' ? 16 : 8, 1, code == 'x' ? 6 : 8);
        if (!take("}")) refuse("an escape without its", "}");
        return value;
      }
      if (code == 'x') return in_base(16, 1, 2);
      break;
    case 'u':
      return in_base(16, 4, 4);
    case 'c':
    case 'C':
      if (code == 'C' && !take("-")) break;
      if (more() && *p_ > 0 && *p_ != '\\') return static_cast<uint32_t>(*p_++) & 0x1f;
      break;
    default:
      break;
  }
  if (code >= '0' && code <= '7') {
    --p_;
    return in_base(8, 1, 3);
  }
  const bool letter_or_digit = code < 128 && ((code >= '8' && code <= '9') ||
                                              ((code | 0x20) >= 'a' && (code | 0x20) <= 'z'));
  if (letter_or_digit || code >= 128) {
    std::string shown = "\\";
    append_utf8(shown, code);
    refuse("the escape", shown);
  }
  return code;
}

uint32_t ClassReader::class_character() {
  if (!take("\\")) return code_point();
  if (!more()) refuse("a backslash at its", "end");
  if (take("b")) return '\b';
  return escaped_character();
}

/// [:punct:] and [:^punct:]; false where that is not one.
bool ClassReader::posix_name(OneOf& found) {
  const std::string_view rest(p_, static_cast<size_t>(end_ - p_));
  if (!rest.starts_with("[:")) return false;
  const size_t close = rest.find(":]");
  const bool negative = rest.substr(2).starts_with('^');
  const size_t begin = negative ? 3 : 2;
  if (close == std::string_view::npos || close < begin) return false;
  const std::string_view name = rest.substr(begin, close - begin);
  if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyz") != std::string_view::npos) return false;
  const std::optional<NamedSet> set = posix_set(name);
  if (!set) refuse("the name of a class", in_quotes(name));
  if (set->has_case && ignore_case_)
    refuse("a property of case in a class that ignores case:", in_quotes(name));
  p_ += close + 2;
  found = of_items(set->items, set->set);
  if (negative) found = negated(found);
  return true;
}

OneOf ClassReader::range_or_character(bool first) {
  // A bracket that would close an empty class is a character.
  const uint32_t low = first && take("]") ? ']' : class_character();
  uint32_t high = low;
  const bool is_range = end_ - p_ >= 2 && *p_ == '-' && p_[1] != ']' &&
                        !std::string_view(p_, static_cast<size_t>(end_ - p_)).starts_with("-&&");
  if (is_range) {
    ++p_;
    if (*p_ == '[' || *p_ == '-') refuse("the range to", {p_, 1});
    if (at_set()) refuse("a range to", {p_, 2});
    high = class_character();
    if (high < low) refuse("a range whose end comes before its", "beginning");
  }
  std::string items = literal(low);
  if (is_range) items += "-" + literal(high);
  return of_items(items, range_of(low, high));
}

void ClassReader::add(OneOf& to, std::vector<std::string>& others, const OneOf& item) const {
  if (item.expression.empty())
    to.items += item.items;
  else
    others.push_back(item.expression);
  to.set.may |= item.set.may;
  to.set.must |= item.set.must;
}

/// What stands between "&&", up to the bracket that closes the class.
OneOf ClassReader::class_operand(bool& first, bool& empty) {
  OneOf all;
  std::vector<std::string> others;
  while (more() && (*p_ != ']' || first) &&
         !std::string_view(p_, static_cast<size_t>(end_ - p_)).starts_with("&&")) {
    OneOf item;
    if (posix_name(item)) {
      // A set by its name.
    } else if (take("[")) {
      item = char_class();
      if (ignore_case_ && !item.expression.empty())
        refuse("a class of classes that ignores", "case");
    } else if (at_set()) {
      ++p_;
      item = escaped_set(true);
    } else {
      item = range_or_character(first);
    }
    first = false;
    add(all, others, item);
    empty = false;
  }
  if (others.empty()) {
    if (all.items.empty()) all.expression = "(?!)";
    return all;
  }
  if (others.size() == 1 && all.items.empty()) {
    all.expression = others[0];
    return all;
  }
  // One character has one way through the alternatives, or repetitions would try all.
  all.expression = "(?>";
  if (!all.items.empty()) all.expression += "[" + all.items + "]|";
  for (size_t i = 0; i < others.size(); ++i) all.expression += (i > 0 ? "|" : "") + others[i];
  all.expression += ")";
  all.items.clear();
  return all;
}

OneOf ClassReader::char_class() {
  if (++class_depth_ > kDeepestClass) refuse("classes nested too", "deeply");
  const bool negative = take("^");
  bool first = true, empty = true;
  OneOf all = class_operand(first, empty);
  bool intersects = false;
  while (take("&&")) {
    if (ignore_case_) refuse("an intersection of classes that ignores", "case");
    intersects = true;
    const OneOf next = class_operand(first, empty);
    all = {"",
           "(?:(?=" + all.text() + ")" + next.text() + ")",
           {all.set.may & next.set.may, all.set.must & next.set.must}};
  }
  if (!take("]")) refuse("a class without its", "]");
  if (empty && !intersects) refuse("a class of no", "character");
  --class_depth_;
  return negative ? negated(all) : all;
}

}  // namespace brrr::io
