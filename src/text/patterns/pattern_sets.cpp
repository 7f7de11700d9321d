#include "text/patterns/pattern_sets.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/encoding/utf8.h"

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

CharacterSet hex_range() {
  CharacterSet r = range_of('0', '9');
  for (const auto& more : {range_of('A', 'F'), range_of('a', 'f')}) r.may |= more.may;
  r.must = r.may;
  return r;
}

namespace {

struct Name {
  std::string_view name, items;
};

// In small letters, without '_'.
constexpr Name kCategories[] = {{"other", "C"},
                                {"control", "Cc"},
                                {"format", "Cf"},
                                {"unassigned", "Cn"},
                                {"privateuse", "Co"},
                                {"letter", "L"},
                                {"casedletter", "L&"},
                                {"lc", "L&"},
                                {"lowercaseletter", "Ll"},
                                {"modifierletter", "Lm"},
                                {"otherletter", "Lo"},
                                {"titlecaseletter", "Lt"},
                                {"uppercaseletter", "Lu"},
                                {"mark", "M"},
                                {"combiningmark", "M"},
                                {"spacingmark", "Mc"},
                                {"enclosingmark", "Me"},
                                {"nonspacingmark", "Mn"},
                                {"number", "N"},
                                {"decimalnumber", "Nd"},
                                {"letternumber", "Nl"},
                                {"othernumber", "No"},
                                {"punctuation", "P"},
                                {"connectorpunctuation", "Pc"},
                                {"dashpunctuation", "Pd"},
                                {"closepunctuation", "Pe"},
                                {"finalpunctuation", "Pf"},
                                {"initialpunctuation", "Pi"},
                                {"otherpunctuation", "Po"},
                                {"openpunctuation", "Ps"},
                                {"symbol", "S"},
                                {"currencysymbol", "Sc"},
                                {"modifiersymbol", "Sk"},
                                {"mathsymbol", "Sm"},
                                {"othersymbol", "So"},
                                {"separator", "Z"},
                                {"lineseparator", "Zl"},
                                {"paragraphseparator", "Zp"},
                                {"spaceseparator", "Zs"}};

// Graph is all that is neither a separator nor a control character nor unassigned.
constexpr Name kPosix[] = {{"alnum", "\\p{Alphabetic}\\p{Nd}"},
                           {"alpha", "\\p{Alphabetic}"},
                           {"ascii", "\\x00-\\x7f"},
                           {"blank", "\\p{Zs}\\x09"},
                           {"cntrl", "\\p{Cc}"},
                           {"digit", "\\p{Nd}"},
                           {"graph", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}"},
                           {"lower", "\\p{Lowercase}"},
                           {"print", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}\\p{Zs}"},
                           {"punct", "\\p{P}"},
                           {"space", kSpaceItems},
                           {"upper", "\\p{Uppercase}"},
                           {"xdigit", kHexItems},
                           {"word", kWordItems}};

std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name)
    if (c != ' ' && c != '_' && c != '-')
      plain += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return plain;
}

/// Whether PCRE2 knows the property that a pattern names.
bool is_known(const std::string& pattern) {
  int error = 0;
  size_t offset = 0;
  pcre2_code* const code = pcre2_compile(as_bytes(pattern.data()), pattern.size(),
                                         PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

/// The ASCII characters for which `is_one` holds, and perhaps others.
template <typename IsOne>
CharacterSet ascii_set(IsOne&& is_one) {
  CharacterSet r;
  for (size_t c = 0; c < 128; ++c)
    if (is_one(static_cast<char>(c))) r.may.set(c);
  r.must = r.may;
  r.may.set(kWideSymbol);
  return r;
}

CharacterSet category_set(std::string_view name) {
  return ascii_set([=](char c) {
    const std::string_view of_c = category(c);
    return name == "L&" ? of_c[0] == 'L' : of_c.starts_with(name);
  });
}

std::optional<NamedSet> posix_of(const std::string& name) {
  for (const Name& one : kPosix) {
    if (one.name != name) continue;
    NamedSet found{std::string(one.items), {}, name == "lower" || name == "upper"};
    found.set = ascii_set([&](char c) {
      const char kind = category(c)[0];
      const bool letter = kind == 'L', digit = kind == 'N';
      return name == "alnum"    ? letter || digit
             : name == "alpha"  ? letter
             : name == "ascii"  ? true
             : name == "blank"  ? c == ' ' || c == '\t'
             : name == "cntrl"  ? kind == 'C'
             : name == "digit"  ? digit
             : name == "graph"  ? kind != 'C' && kind != 'Z'
             : name == "lower"  ? c >= 'a' && c <= 'z'
             : name == "print"  ? kind != 'C'
             : name == "punct"  ? kind == 'P'
             : name == "space"  ? c == ' ' || (c >= 9 && c <= 13)
             : name == "upper"  ? c >= 'A' && c <= 'Z'
             : name == "xdigit" ? digit || ((c | 32) >= 'a' && (c | 32) <= 'f')
                                : letter || digit || c == '_';
    });
    if (name == "ascii" || name == "xdigit") found.set.may.reset(kWideSymbol);
    return found;
  }
  return std::nullopt;
}

}  // namespace

std::optional<NamedSet> posix_set(std::string_view name) {
  std::optional<NamedSet> found = posix_of(std::string(name));
  if (found && name == "punct") {
    // In brackets symbols count, too.
    found->items += "\\p{S}";
    const CharacterSet symbols = category_set("S");
    found->set.may |= symbols.may;
    found->set.must |= symbols.must;
  }
  return found;
}

std::optional<NamedSet> property_set(std::string_view name) {
  const std::string plain = plain_name(name);
  if (plain.empty() || plain.find_first_not_of("abcdefghijklmnopqrstuvwxyz") != std::string::npos)
    return std::nullopt;
  if (auto posix = posix_of(plain)) return posix;
  if (plain == "any") return NamedSet{"\\x00-\\x{10ffff}", complement({}), false};
  if (plain == "assigned") return NamedSet{"\\P{Cn}", ascii_set([](char) { return true; }), false};
  std::string category_name;
  for (const Name& one : kCategories)
    if (one.name == plain) category_name = one.items;
  if (category_name.empty() && plain.size() <= 2 &&
      std::string_view("lmnpszc").find(plain[0]) != std::string_view::npos) {
    category_name = plain;
    category_name[0] = static_cast<char>(category_name[0] - 32);
  }
  if (!category_name.empty()) {
    const std::string items = "\\p{" + category_name + "}";
    if (!is_known(items)) return std::nullopt;
    const bool has_case = category_name == "Lu" || category_name == "Ll" || category_name == "Lt" ||
                          category_name == "L&";
    return NamedSet{items, category_set(category_name), has_case};
  }
  // A bare script is, to PCRE2, also what several scripts share.
  if (const std::string script = "\\p{sc:" + plain + "}"; is_known(script)) {
    const bool has_ascii = plain == "latin" || plain == "latn" || plain == "common" ||
                           plain == "zyyy" || plain == "unknown" || plain == "zzzz";
    CharacterSet set;
    set.may.set(kWideSymbol);
    if (has_ascii) set.may.set();
    return NamedSet{script, set, false};
  }
  const std::string binary = "\\p{" + plain + "}";
  const bool of_pcre2_alone = plain[0] == 'x' && plain.size() == 3;
  if (of_pcre2_alone || !is_known(binary)) return std::nullopt;
  CharacterSet set;
  set.may.set();
  return NamedSet{binary, set, plain == "uppercase" || plain == "lowercase" || plain == "cased"};
}

}  // namespace brrr::io
