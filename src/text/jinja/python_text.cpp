#include "text/jinja/python_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "base/encoding/utf8.h"

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

bool is_cased(uint32_t code) {
  const utf8proc_category_t c = category_of(code);
  return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

void append_upper(uint32_t code, std::string& out) {
  if (code == 0xdf)  // the one common letter that becomes two
    out += "SS";
  else
    append_code_point(
        code >= kByte ? code : static_cast<uint32_t>(utf8proc_toupper(static_cast<int32_t>(code))),
        out);
}

void append_lower(uint32_t code, std::string& out) {
  append_code_point(
      code >= kByte ? code : static_cast<uint32_t>(utf8proc_tolower(static_cast<int32_t>(code))),
      out);
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
  each_character(text, [&](uint32_t code, std::string_view) { append_lower(code, out); });
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  bool first = true;
  each_character(text, [&](uint32_t code, std::string_view) {
    first ? append_upper(code, out) : append_lower(code, out);
    first = false;
  });
  return out;
}

std::string title_of_words(std::string_view text) {
  std::string out;
  bool inside = false;
  each_character(text, [&](uint32_t code, std::string_view) {
    inside ? append_lower(code, out) : append_upper(code, out);
    inside = is_cased(code);
  });
  return out;
}

std::string title_of_filter(std::string_view text) {
  std::string out;
  bool inside = false;
  each_character(text, [&](uint32_t code, std::string_view) {
    inside ? append_lower(code, out) : append_upper(code, out);
    inside = !(is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' ||
               code == '<');
  });
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0, at = 0;
  bool after_return = false;
  each_character(text, [&](uint32_t code, std::string_view bytes) {
    if (code == '\n' && after_return) {
      begin = at + 1;
    } else if (ends_line(code)) {
      lines.push_back(text.substr(begin, at - begin));
      begin = at + bytes.size();
    }
    after_return = code == '\r';
    at += bytes.size();
  });
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
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

std::string python_quoted(std::string_view text) {
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
    else if (is_printable(code))
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

bool all_are(std::string_view text, CharClass kind) {
  bool all = !text.empty();
  each_character(text, [&](uint32_t code, std::string_view) {
    const bool digit = category_of(code) == UTF8PROC_CATEGORY_ND;
    const bool fits = kind == CharClass::alpha   ? is_letter(code)
                      : kind == CharClass::digit ? digit
                      : kind == CharClass::space ? is_space(code)
                                                 : digit || is_letter(code);
    all = all && fits;
  });
  return all;
}

bool all_cased(std::string_view text, bool upper) {
  bool some = false, all = true;
  each_character(text, [&](uint32_t code, std::string_view) {
    if (!is_cased(code)) return;
    some = true;
    all = all && (category_of(code) == UTF8PROC_CATEGORY_LU) == upper;
  });
  return some && all;
}

}  // namespace brrr::jinja
