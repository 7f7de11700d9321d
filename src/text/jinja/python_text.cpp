#include "text/jinja/python_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "base/encoding/utf8.h"
#include "text/jinja/python_cases.h"

namespace brrr::jinja {
namespace {

/// Calls visit(code, bytes of it) for every character.
template <typename Visit>
void each_character(std::string_view text, Visit&& visit) {
  const uint8_t *begin = io::as_bytes(text.data()), *end = begin + text.size();
  for (const uint8_t* p = begin; p < end;) {
    const io::DecodedChar c = io::decode_utf8(p, end);
    visit(c.code == io::kInvalidByte ? kByte + *p : c.code,
          text.substr(static_cast<size_t>(p - begin), c.bytes));
    p += c.bytes;
  }
}

utf8proc_category_t category_of(uint32_t code) {
  return code >= kByte ? UTF8PROC_CATEGORY_CN
                       : utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_letter(uint32_t code) {
  const utf8proc_category_t c = category_of(code);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

template <size_t N>
bool in_ranges(const CodeRange (&ranges)[N], uint32_t code) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [=](const CodeRange& r) { return r.first <= code && code <= r.second; });
}

bool is_lower(uint32_t code) {
  return category_of(code) == UTF8PROC_CATEGORY_LL ||
         (code >= 0xaa && in_ranges(kOtherLowercase, code));
}

bool is_upper(uint32_t code) {
  return category_of(code) == UTF8PROC_CATEGORY_LU ||
         (code >= 0x2160 && in_ranges(kOtherUppercase, code));
}

bool is_cased(uint32_t code) {
  return category_of(code) == UTF8PROC_CATEGORY_LT || is_lower(code) || is_upper(code);
}

/// Case_Ignorable: marks and signs inside words.
bool is_ignored_by_case(uint32_t code) {
  switch (category_of(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      break;
  }
  for (const uint32_t inside : {0x27, 0x2e, 0x3a, 0xb7, 0x387, 0x55f, 0x5f4, 0x2018, 0x2019, 0x2024,
                                0x2027, 0xfe13, 0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a})
    if (code == inside) return true;
  return false;
}

const LongCapital* long_capital(uint32_t code) {
  if (code < 0xdf) return nullptr;
  for (const LongCapital& one : kLongCapitals)
    if (one.code == code) return &one;
  return nullptr;
}

void append_upper(uint32_t code, std::string& out) {
  if (const LongCapital* letters = long_capital(code))
    out += letters->upper;
  else
    append_code_point(
        code >= kByte ? code : static_cast<uint32_t>(utf8proc_toupper(static_cast<int32_t>(code))),
        out);
}

void append_title(uint32_t code, std::string& out) {
  if (const LongCapital* letters = long_capital(code))
    out += letters->title;
  else
    append_code_point(
        code >= kByte ? code : static_cast<uint32_t>(utf8proc_totitle(static_cast<int32_t>(code))),
        out);
}

/// The lower case of codes[i]; a capital sigma at the end of a word has one of its own.
void append_lower(const std::vector<uint32_t>& codes, size_t i, std::string& out) {
  constexpr uint32_t kSigma = 0x3a3, kDottedI = 0x130;
  const uint32_t code = codes[i];
  if (code == kDottedI) {
    out += "i\u0307";
  } else if (code == kSigma) {
    size_t before = i, after = i + 1;
    while (before > 0 && is_ignored_by_case(codes[before - 1])) --before;
    while (after < codes.size() && is_ignored_by_case(codes[after])) ++after;
    const bool is_last = before > 0 && is_cased(codes[before - 1]) &&
                         (after == codes.size() || !is_cased(codes[after]));
    append_code_point(is_last ? 0x3c2 : 0x3c3, out);
  } else {
    append_code_point(
        code >= kByte ? code : static_cast<uint32_t>(utf8proc_tolower(static_cast<int32_t>(code))),
        out);
  }
}

/// What an identifier may have behind its first character.
bool continues_identifier(uint32_t code) {
  const utf8proc_category_t c = category_of(code);
  return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_MN ||
         c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_PC;
}

bool is_printable(uint32_t code) {
  switch (category_of(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code == ' ';
    default:
      return true;
  }
}

bool ends_line(uint32_t code) {
  return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

}  // namespace

std::vector<uint32_t> code_points(std::string_view text) {
  std::vector<uint32_t> codes;
  codes.reserve(text.size());
  each_character(text, [&](uint32_t code, std::string_view) { codes.push_back(code); });
  return codes;
}

void append_code_point(uint32_t code, std::string& out) {
  if (code >= kByte)
    out += static_cast<char>(code - kByte);
  else
    io::append_utf8(out, code);
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  each_character(text, [&](uint32_t, std::string_view) { ++count; });
  return count;
}

bool is_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

std::string_view strip(std::string_view text, const std::string* set, bool left, bool right) {
  const std::vector<uint32_t> taken = set ? code_points(*set) : std::vector<uint32_t>();
  size_t begin = text.size(), end = 0, at = 0;
  each_character(text, [&](uint32_t code, std::string_view bytes) {
    const bool goes =
        set ? std::find(taken.begin(), taken.end(), code) != taken.end() : is_space(code);
    if (!goes) {
      begin = std::min(begin, at);
      end = at + bytes.size();
    }
    at += bytes.size();
  });
  if (end == 0) return left || right ? text.substr(0, 0) : text;
  if (!left) begin = 0;
  if (!right) end = text.size();
  return text.substr(begin, end - begin);
}

std::string upper(std::string_view text) {
  std::string out;
  each_character(text, [&](uint32_t code, std::string_view) { append_upper(code, out); });
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  const std::vector<uint32_t> codes = code_points(text);
  for (size_t i = 0; i < codes.size(); ++i) append_lower(codes, i, out);
  return out;
}

std::string casefold(std::string_view text) {
  std::string out;
  each_character(text, [&](uint32_t code, std::string_view bytes) {
    utf8proc_int32_t folded[8];
    int boundary = 0;
    const utf8proc_ssize_t count =
        code >= kByte ? -1
                      : utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), folded, 8,
                                                UTF8PROC_CASEFOLD, &boundary);
    if (count < 0 || count > 8) {
      out += bytes;
      return;
    }
    for (utf8proc_ssize_t i = 0; i < count; ++i)
      append_code_point(static_cast<uint32_t>(folded[i]), out);
  });
  return out;
}

std::string swapcase(std::string_view text) {
  std::string out;
  const std::vector<uint32_t> codes = code_points(text);
  for (size_t i = 0; i < codes.size(); ++i) {
    if (is_upper(codes[i]))
      append_lower(codes, i, out);
    else if (is_lower(codes[i]))
      append_upper(codes[i], out);
    else
      append_code_point(codes[i], out);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  const std::vector<uint32_t> codes = code_points(text);
  for (size_t i = 0; i < codes.size(); ++i)
    i == 0 ? append_title(codes[i], out) : append_lower(codes, i, out);
  return out;
}

std::string title_of_words(std::string_view text) {
  std::string out;
  const std::vector<uint32_t> codes = code_points(text);
  bool inside = false;
  for (size_t i = 0; i < codes.size(); ++i) {
    inside ? append_lower(codes, i, out) : append_title(codes[i], out);
    inside = is_cased(codes[i]);
  }
  return out;
}

std::string title_of_filter(std::string_view text) {
  std::string out;
  std::vector<uint32_t> word;
  const auto end_word = [&] {
    if (word.empty()) return;
    append_upper(word[0], out);
    word.erase(word.begin());
    for (size_t i = 0; i < word.size(); ++i) append_lower(word, i, out);
    word.clear();
  };
  for (const uint32_t code : code_points(text)) {
    const bool separates =
        is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
    if (!separates) {
      word.push_back(code);
      continue;
    }
    end_word();
    append_code_point(code, out);
  }
  end_word();
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keeps_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0, at = 0;
  const std::vector<uint32_t> codes = code_points(text);
  for (size_t i = 0; i < codes.size(); ++i) {
    std::string bytes;
    append_code_point(codes[i], bytes);
    const size_t end_of_text = at;
    at += bytes.size();
    if (!ends_line(codes[i])) continue;
    if (codes[i] == '\r' && i + 1 < codes.size() && codes[i + 1] == '\n') ++i, ++at;
    lines.push_back(text.substr(begin, (keeps_ends ? at : end_of_text) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string expand_tabs(std::string_view text, int64_t size) {
  std::string out;
  int64_t column = 0;
  each_character(text, [&](uint32_t code, std::string_view bytes) {
    if (code != '\t') {
      column = code == '\n' || code == '\r' ? 0 : column + 1;
      out += bytes;
    } else if (size > 0) {
      const int64_t spaces = size - column % size;
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
    }
  });
  return out;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator, int64_t most,
                                    bool from_right) {
  std::vector<std::string_view> parts;
  const auto more = [&] { return most < 0 || static_cast<int64_t>(parts.size()) < most; };
  if (separator.empty()) {
    // The words by their places; those beyond `most` stay together with the space between them.
    std::vector<std::pair<size_t, size_t>> words;
    bool inside = false;
    size_t at = 0;
    each_character(text, [&](uint32_t code, std::string_view bytes) {
      const bool space = is_space(code);
      if (!space && !inside) words.emplace_back(at, at);
      inside = !space;
      at += bytes.size();
      if (inside) words.back().second = at;
    });
    if (from_right) std::reverse(words.begin(), words.end());
    for (const auto& [begin, end] : words) {
      if (!more()) {
        parts.push_back(from_right ? text.substr(0, end) : text.substr(begin));
        break;
      }
      parts.push_back(text.substr(begin, end - begin));
    }
  } else if (from_right) {
    while (more()) {
      const size_t at = text.rfind(separator);
      if (at == std::string_view::npos) break;
      parts.push_back(text.substr(at + separator.size()));
      text = text.substr(0, at);
    }
    parts.push_back(text);
  } else {
    while (more()) {
      const size_t at = text.find(separator);
      if (at == std::string_view::npos) break;
      parts.push_back(text.substr(0, at));
      text.remove_prefix(at + separator.size());
    }
    parts.push_back(text);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t most) {
  std::string out;
  int64_t done = 0;
  if (from.empty()) {
    each_character(text, [&](uint32_t, std::string_view bytes) {
      if (most < 0 || done < most) out += to;
      ++done;
      out += bytes;
    });
    if (most < 0 || done < most) out += to;
    return out;
  }
  for (size_t at; (most < 0 || done < most) && (at = text.find(from)) != std::string_view::npos;
       ++done) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

std::string python_quoted(std::string_view text, bool ascii) {
  const bool doubled =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = doubled ? '"' : '\'';
  std::string out(1, quote);
  each_character(text, [&](uint32_t code, std::string_view bytes) {
    if (code == static_cast<uint32_t>(quote) || code == '\\')
      out.append(1, '\\').append(bytes);
    else if (code == '\n')
      out += "\\n";
    else if (code == '\r')
      out += "\\r";
    else if (code == '\t')
      out += "\\t";
    else if (is_printable(code) && (!ascii || code < 0x80))
      out += bytes;
    else if (code < 0x100)
      out += fmt::format("\\x{:02x}", code);
    else if (code < 0x10000)
      out += fmt::format("\\u{:04x}", code);
    else if (code < kByte)
      out += fmt::format("\\U{:08x}", code);
    else
      out += fmt::format("\\x{:02x}", code - kByte);
  });
  return out + quote;
}

std::optional<int> decimal_digit(uint32_t code) {
  if (code >= '0' && code <= '9') return static_cast<int>(code - '0');
  if (code < 0x80 || category_of(code) != UTF8PROC_CATEGORY_ND) return std::nullopt;
  // The digits of a script stand together, from 0 to 9.
  uint32_t zero = code;
  while (category_of(zero - 1) == UTF8PROC_CATEGORY_ND) --zero;
  return static_cast<int>((code - zero) % 10);
}

bool continues_word(uint32_t code) {
  const utf8proc_category_t c = category_of(code);
  return code == '_' || is_letter(code) || c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL ||
         c == UTF8PROC_CATEGORY_NO;
}

bool all_are(std::string_view text, CharClass kind) {
  if (kind == CharClass::ascii || kind == CharClass::printable) {
    const std::vector<uint32_t> codes = code_points(text);
    return std::all_of(codes.begin(), codes.end(), [=](uint32_t code) {
      return kind == CharClass::ascii ? code < 0x80 : is_printable(code);
    });
  }
  bool all = !text.empty(), first = true;
  each_character(text, [&](uint32_t code, std::string_view) {
    const bool decimal = category_of(code) == UTF8PROC_CATEGORY_ND;
    bool fits = false;
    switch (kind) {
      case CharClass::alpha:
        fits = is_letter(code);
        break;
      case CharClass::decimal:
        fits = decimal;
        break;
      case CharClass::digit:
        fits = decimal || in_ranges(kOtherDigits, code);
        break;
      case CharClass::numeric:
        fits = (continues_word(code) && !is_letter(code) && code != '_') ||
               in_ranges(kNumericLetters, code);
        break;
      case CharClass::space:
        fits = is_space(code);
        break;
      case CharClass::identifier:
        fits = code == '_' || is_letter(code) || (!first && continues_identifier(code));
        break;
      default:
        fits = continues_word(code) && code != '_';
    }
    all = all && fits;
    first = false;
  });
  return all;
}

bool all_cased(std::string_view text, bool upper) {
  bool some = false, all = true;
  each_character(text, [&](uint32_t code, std::string_view) {
    if (!is_cased(code)) return;
    some = true;
    all = all && (upper ? is_upper(code) : is_lower(code));
  });
  return some && all;
}

bool is_title(std::string_view text) {
  bool some = false, right = true, inside = false;
  each_character(text, [&](uint32_t code, std::string_view) {
    const bool cased = is_cased(code);
    if (cased) right = right && is_lower(code) == inside;
    some = some || cased;
    inside = cased;
  });
  return some && right;
}

}  // namespace brrr::jinja
