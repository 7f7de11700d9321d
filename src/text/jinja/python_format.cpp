#include "text/jinja/python_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja/format_parts.h"
#include "text/jinja/python_numbers.h"
#include "text/jinja/python_text.h"

namespace brrr::jinja {
namespace {

constexpr int64_t kMostPrecision = 10'000;
constexpr int kDeepestField = 3;  // as Python has it: a specification may hold fields

bool starts_number(char c) { return c >= '0' && c <= '9'; }

}  // namespace

/// The digits at the beginning of `text`, which are taken from it; -1 without any.
int64_t take_number(std::string_view& text) {
  int64_t value = -1;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || !starts_number(text[0])) return -1;
  if (read.ec != std::errc()) user_error("a width or a precision is too large");
  text.remove_prefix(static_cast<size_t>(read.ptr - text.data()));
  return value;
}

std::string spaces(Work& work, const std::string& fill, int64_t count) {
  std::string out;
  if (count <= 0) return out;
  work.spend_text(static_cast<size_t>(count) * fill.size());
  for (; count > 0; --count) out += fill;
  return out;
}

/// A double by one of C's conversions, as Python writes it.
std::string converted(double value, char type, int64_t precision, bool alternate) {
  const bool upper = type >= 'A' && type <= 'Z';
  if (!std::isfinite(value)) {
    std::string text = std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
    if (upper)
      for (char& c : text) c = static_cast<char>(c >= 'a' ? c - 32 : c);
    return text;
  }
  if (precision > kMostPrecision) user_error("a precision is larger than {}", kMostPrecision);
  const std::string format = std::string(alternate ? "%#.*" : "%.*") + type;
  std::string text(static_cast<size_t>(precision) + 400, '\0');
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const int size =
      std::snprintf(text.data(), text.size(), format.c_str(), static_cast<int>(precision), value);
#pragma GCC diagnostic pop
  text.resize(static_cast<size_t>(size));
  return text;
}

std::string in_base(uint64_t value, char type) {
  const int base = type == 'b' ? 2 : type == 'o' ? 8 : (type | 0x20) == 'x' ? 16 : 10;
  char digits[65];
  const auto read = std::to_chars(digits, digits + sizeof digits, value, base);
  std::string text(digits, read.ptr);
  if (type == 'X')
    for (char& c : text) c = static_cast<char>(c >= 'a' ? c - 32 : c);
  return text;
}

uint64_t magnitude(int64_t value) {
  return value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

std::string character_of(int64_t code) {
  if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
    user_error("{} is not the number of a character", code);
  std::string text;
  append_code_point(static_cast<uint32_t>(code), text);
  return text;
}

namespace {

// ---- The mini-language of format()

bool is_align(uint32_t c) { return c == '<' || c == '>' || c == '=' || c == '^'; }

Specification read_specification(std::string_view text) {
  Specification s;
  const auto take = [&](std::string_view allowed) {
    if (text.empty() || allowed.find(text[0]) == std::string_view::npos) return '\0';
    const char c = text[0];
    text.remove_prefix(1);
    return c;
  };
  const std::vector<uint32_t> codes = code_points(text.substr(0, 8));
  if (codes.size() > 1 && is_align(codes[1])) {
    s.fill.clear();
    append_code_point(codes[0], s.fill);
    text.remove_prefix(s.fill.size());
  }
  const bool has_fill = s.fill != " " || (codes.size() > 1 && is_align(codes[1]));
  s.align = take("<>=^");
  if (const char sign = take("+- ")) s.sign = sign;
  s.no_negative_zero = take("z") != '\0';
  s.alternate = take("#") != '\0';
  if (!has_fill && text.starts_with('0')) {
    s.zero = true;
    s.fill = "0";
    if (s.align == '\0') s.align = '=';
    text.remove_prefix(1);
  }
  s.width = std::max<int64_t>(take_number(text), 0);
  s.grouping = take(",_");
  if (take(".") != '\0') {
    s.precision = take_number(text);
    if (s.precision < 0) user_error("the format has no precision behind its point");
  }
  if (!text.empty()) s.type = take(text.substr(0, 1));
  if (!text.empty()) user_error("the format is not valid at '{}'", text.substr(0, 100));
  return s;
}

[[noreturn]] void wrong_format(const Specification& s, const Value& value) {
  user_error("the format '{}' is not for {}", std::string(1, s.type), value.type_name());
}

/// `digits` with a sign between every `size`, from the right.
std::string grouped(std::string_view digits, char sign, size_t size) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % size == 0) out += sign;
    out += digits[i];
  }
  return out;
}

std::string padded(Work& work, const std::string& text, const Specification& s, char align) {
  const int64_t missing = s.width - static_cast<int64_t>(count_characters(text));
  if (missing <= 0) return text;
  const int64_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  return spaces(work, s.fill, left) + text + spaces(work, s.fill, missing - left);
}

/// Puts a sign, a prefix, groups and padding around a number: `digits` are its whole digits, `rest`
/// what follows them.
std::string padded_number(Work& work, const Specification& s, bool negative,
                          const std::string& prefix, std::string digits, const std::string& rest) {
  const std::string sign = negative ? "-" : s.sign == '-' ? "" : std::string(1, s.sign);
  const size_t group = s.type == 'b' || s.type == 'o' || (s.type | 0x20) == 'x' ? 4 : 3;
  const std::string head = sign + prefix;
  if (s.grouping) {
    const size_t taken = head.size() + rest.size();
    const auto width = static_cast<size_t>(s.width);
    if (s.fill == "0" && s.align == '=') {
      // Zeros are grouped, too, and a group never begins with its separator.
      size_t count = digits.size();
      while (taken + count + (count - 1) / group < width) ++count;
      work.spend_text(count);
      digits.insert(0, count - digits.size(), '0');
    }
    digits = grouped(digits, s.grouping, group);
  }
  const std::string body = digits + rest;
  if (s.align == '=') {
    const int64_t missing = s.width - static_cast<int64_t>(head.size() + body.size());
    return head + spaces(work, s.fill, missing) + body;
  }
  return padded(work, head + body, s, s.align ? s.align : '>');
}

std::string formatted_real(Work& work, double value, Specification s) {
  std::string text;
  const int64_t precision = s.precision < 0 ? 6 : s.precision;
  switch (s.type) {
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      text = converted(value, s.type, precision, s.alternate);
      break;
    case 'n':
      text = converted(value, 'g', precision, s.alternate);
      break;
    case '%':
      text = converted(value * 100, 'f', precision, s.alternate) + "%";
      break;
    default:
      if (s.precision < 0) {
        text = text_of_real(value);
        break;
      }
      // As 'g', with an exponent one digit earlier and a digit behind the point.
      text = converted(value, 'e', std::max<int64_t>(precision, 1) - 1, false);
      if (const size_t e = text.find('e'); e != std::string::npos) {
        const int exponent = std::atoi(text.c_str() + e + 1);
        const bool plain = exponent >= -4 && exponent < std::max<int64_t>(precision, 1) - 1;
        text = converted(value, 'g', std::max<int64_t>(precision, 1), s.alternate);
        if (plain && text.find('.') == std::string::npos) text += ".0";
        if (!plain && exponent >= -4 && text.find('e') == std::string::npos) {
          text = converted(value, 'e', std::max<int64_t>(precision, 1) - 1, s.alternate);
          const size_t at = text.find('e');
          std::string mantissa = text.substr(0, at);
          if (!s.alternate && mantissa.find('.') != std::string::npos) {
            while (mantissa.back() == '0') mantissa.pop_back();
            if (mantissa.back() == '.') mantissa.pop_back();
          }
          text = mantissa + text.substr(at);
        }
      }
  }
  bool negative = text.starts_with('-');
  if (negative) text.erase(0, 1);
  if (negative && s.no_negative_zero && text.find_first_of("123456789ni") == std::string::npos)
    negative = false;
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  if (end == 0) s.grouping = '\0';  // inf and nan
  return padded_number(work, s, negative, "", text.substr(0, end), text.substr(end));
}

std::string formatted_integer(Work& work, const Value& value, const Specification& s) {
  if (s.type == 'c') {
    if (s.sign != '-' || s.grouping || s.precision >= 0 || s.alternate) wrong_format(s, value);
    Specification text = s;
    return padded(work, character_of(value.integer()), text, s.align ? s.align : '>');
  }
  if (s.type != '\0' && std::string_view("bdoxXn").find(s.type) == std::string_view::npos) {
    if (std::string_view("eEfFgG%").find(s.type) == std::string_view::npos) wrong_format(s, value);
    return formatted_real(work, value.number(), s);
  }
  if (s.precision >= 0) user_error("a precision is not allowed for an integer");
  if (s.grouping == ',' && s.type != '\0' && s.type != 'd') wrong_format(s, value);
  if (s.grouping && s.type == 'n') wrong_format(s, value);
  const std::string prefix = s.alternate && s.type != '\0' && s.type != 'd' && s.type != 'n'
                                 ? std::string("0") + s.type
                                 : "";
  return padded_number(work, s, value.integer() < 0, prefix,
                       in_base(magnitude(value.integer()), s.type ? s.type : 'd'), "");
}

}  // namespace

std::string formatted_text(Work& work, const std::string& text, const Value& value,
                           const Specification& s) {
  if (s.type != '\0' && s.type != 's') wrong_format(s, value);
  if (s.sign != '-' || s.grouping || s.alternate || s.no_negative_zero ||
      (s.align == '=' && !s.zero))
    user_error("a sign, groups, # and = are for numbers, not for a string");
  std::string cut = text;
  if (s.precision >= 0 && static_cast<int64_t>(count_characters(text)) > s.precision) {
    cut.clear();
    for (const uint32_t code : code_points(text)) {
      if (s.precision == static_cast<int64_t>(count_characters(cut))) break;
      append_code_point(code, cut);
      work.spend(1 + cut.size() / 16);
    }
  }
  return padded(work, cut, s, s.align && s.align != '=' ? s.align : '<');
}

namespace {

// ---- str.format()

/// Reads a format with its fields.
class FieldFormatter {
 public:
  FieldFormatter(Work& work, const Given& given, bool escapes)
      : work_(work), given_(given), escapes_(escapes) {}

  std::string run(std::string_view text, int depth) {
    if (depth > kDeepestField) user_error("the format is nested too deeply");
    std::string out;
    while (!text.empty()) {
      const size_t brace = std::min(text.find_first_of("{}"), text.size());
      out += text.substr(0, brace);
      text.remove_prefix(brace);
      if (text.empty()) break;
      const char c = text[0];
      text.remove_prefix(1);
      if (text.starts_with(c)) {
        out += c;
        text.remove_prefix(1);
      } else if (c == '}') {
        user_error("the format has a '}}' without its '{{'");
      } else {
        out += field(take_field(text), depth);
      }
      work_.spend_text(out.size() / 16);
      if (out.size() > work_.limits().output)
        user_error("a text has more than {} bytes", work_.limits().output);
    }
    return out;
  }

 private:
  /// What stands up to the brace that closes a field.
  static std::string_view take_field(std::string_view& text) {
    int open = 1;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '[') {
        i = std::min(text.find(']', i), text.size() - 1);
        continue;
      }
      open += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
      if (open > 0) continue;
      const std::string_view field = text.substr(0, i);
      text.remove_prefix(i + 1);
      return field;
    }
    user_error("the format has a '{{' without its '}}'");
  }

  std::string field(std::string_view text, int depth) {
    size_t end = 0;
    while (end < text.size() && text[end] != ':' && text[end] != '!')
      end = text[end] == '[' ? std::min(text.find(']', end), text.size() - 1) + 1 : end + 1;
    Value value = look_up(text.substr(0, end));
    text.remove_prefix(end);
    char conversion = '\0';
    if (text.starts_with('!')) {
      if (text.size() < 2 || (text.size() > 2 && text[2] != ':'))
        user_error("the format has no conversion behind '!'");
      conversion = text[1];
      text.remove_prefix(2);
    }
    const std::string specification = text.empty() ? "" : run(text.substr(1), depth + 1);
    if (conversion == 's') {
      value = Value(text_of(work_, value));
    } else if (conversion == 'r' || conversion == 'a') {
      std::string quoted;
      if (conversion == 'a' && value.is_string())
        quoted = python_quoted(value.text(), true);
      else
        append_text(value, true, work_.limits().output, quoted);
      value = Value(std::move(quoted));
    } else if (conversion != '\0') {
      user_error("the format has an unknown conversion '!{}'", std::string(1, conversion));
    }
    if (!escapes_) return formatted(work_, value, specification);
    if (value.is_markup()) {
      if (!specification.empty()) user_error("markup takes no format");
      return value.text();
    }
    return escaped(work_, Value(formatted(work_, value, specification)));
  }

  Value look_up(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = first(name.substr(0, end), end == name.size());
    name.remove_prefix(end);
    while (!name.empty()) {
      if (name[0] == '.') {
        const size_t stop = std::min(name.find_first_of(".[", 1), name.size());
        if (stop == 1) user_error("the format has an empty attribute");
        value = attribute_of(work_, value, std::string(name.substr(1, stop - 1)));
        name.remove_prefix(stop);
      } else {
        const size_t stop = name.find(']');
        if (name[0] != '[' || stop == std::string_view::npos || stop == 1)
          user_error("the format has a field that is not valid");
        const std::string_view key = name.substr(1, stop - 1);
        std::string_view digits = key;
        const int64_t index = starts_number(key[0]) ? take_number(digits) : -1;
        value = item_of(work_, value,
                        index >= 0 && digits.empty() ? Value(index) : Value(std::string(key)));
        name.remove_prefix(stop + 1);
        if (!name.empty() && name[0] != '.' && name[0] != '[')
          user_error("the format has a field that is not valid");
      }
    }
    return value;
  }

  /// `alone`: the field is this name and nothing else; only such fields are numbered.
  Value first(std::string_view name, bool alone) {
    std::string_view digits = name;
    int64_t index = take_number(digits);
    if (!digits.empty()) index = -1;
    if (alone && (name.empty() || index >= 0)) {
      if (numbered_ && *numbered_ == name.empty())
        user_error("the format mixes fields with and without numbers");
      numbered_ = !name.empty();
      if (name.empty()) index = next_++;
    }
    if (index >= 0) {
      if (index >= std::ssize(given_.places))
        user_error("the format has a field {}; {} values are given", index, given_.places.size());
      return given_.places[static_cast<size_t>(index)];
    }
    for (const auto& [given, value] : given_.names)
      if (given == name) return value;
    user_error("the format names the field '{}', which is not given", name.substr(0, 100));
  }

  Work& work_;
  const Given& given_;
  bool escapes_;
  int64_t next_ = 0;
  std::optional<bool> numbered_;
};

}  // namespace

std::string formatted(Work& work, const Value& value, std::string_view specification) {
  if (specification.empty()) return text_of(work, value);
  const Specification s = read_specification(specification);
  work.spend_text(static_cast<size_t>(s.width));
  if (value.is_string()) return formatted_text(work, value.text(), value, s);
  if (value.is_integer()) return formatted_integer(work, value, s);
  if (!value.is_number())
    user_error("{} takes no format, found '{}'", value.type_name(), specification.substr(0, 100));
  if (s.type != '\0' && std::string_view("eEfFgGn%").find(s.type) == std::string_view::npos)
    wrong_format(s, value);
  if (s.grouping && s.type == 'n') wrong_format(s, value);
  return formatted_real(work, value.number(), s);
}

Value format_fields(Work& work, const Value& format, const Given& given) {
  work.spend_text(format.text().size());
  return made_like(work, format,
                   FieldFormatter(work, given, format.is_markup()).run(format.text(), 1));
}

}  // namespace brrr::jinja
