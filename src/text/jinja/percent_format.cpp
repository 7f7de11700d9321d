#include <algorithm>
#include <limits>

#include "text/jinja/format_parts.h"
#include "text/jinja/python_format.h"
#include "text/jinja/python_numbers.h"
#include "text/jinja/python_text.h"

// The operator % of strings.

namespace brrr::jinja {
namespace {

/// What `%` formats, one after the other or by name.
class PercentArguments {
 public:
  PercentArguments(Work& work, const Value& given) : work_(work), given_(given) {
    tuple_ = given.list() && given.list()->tuple ? given.list() : nullptr;
  }
  const Value& next() {
    if (tuple_) {
      if (used_ >= tuple_->items.size()) user_error("the format has more fields than arguments");
      return tuple_->items[used_++];
    }
    if (used_++ > 0) user_error("the format has more fields than arguments");
    return given_;
  }
  Value named(const std::string& name) {
    if (!given_.dict()) user_error("the format names a field; expected a dictionary");
    named_ = true;
    const Value* found = given_.dict()->find(std::string_view(name));
    if (!found)
      user_error("the format names the field '{}', which is not given", name.substr(0, 100));
    work_.spend(1 + given_.dict()->items.size() / 8);
    return *found;
  }
  void check_all_used() const {
    // What has items by key may be left unused: Python takes it for a mapping.
    const bool mapping =
        given_.dict() || given_.range() || given_.is_undefined() || (given_.list() && !tuple_);
    if (tuple_ ? used_ < tuple_->items.size() : used_ == 0 && !named_ && !mapping)
      user_error("the format has fewer fields than arguments");
  }

 private:
  Work& work_;
  const Value& given_;
  const List* tuple_ = nullptr;
  size_t used_ = 0;
  bool named_ = false;
};

struct Conversion {
  bool alternate = false, zero = false, left = false, space = false, plus = false;
  int64_t width = 0, precision = -1;
  char type = '\0';
};

int64_t star(PercentArguments& arguments) {
  const Value& value = arguments.next();
  if (!value.is_integer()) user_error("* takes an integer, found {}", value.type_name());
  return value.integer();
}

/// A number with sign, prefix and padding.
std::string percent_number(Work& work, const Conversion& c, std::string text,
                           const std::string& prefix, bool may_be_zero_padded) {
  const bool negative = text.starts_with('-');
  if (negative) text.erase(0, 1);
  const std::string head = std::string(negative ? "-" : c.plus ? "+" : c.space ? " " : "") + prefix;
  const int64_t missing = c.width - static_cast<int64_t>(head.size() + text.size());
  if (c.left) return head + text + spaces(work, " ", missing);
  if (c.zero && may_be_zero_padded) return head + spaces(work, "0", missing) + text;
  return spaces(work, " ", missing) + head + text;
}

std::string percent_integer(Work& work, const Conversion& c, const Value& value) {
  const bool decimal = c.type == 'd' || c.type == 'i' || c.type == 'u';
  if (!value.is_number() || (!decimal && !value.is_integer()))
    user_error("%{} takes {}, found {}", std::string(1, c.type),
               decimal ? "a number" : "an integer", value.type_name());
  const int64_t number = value.is_integer() ? value.integer() : truncate_to_integer(value.number());
  std::string digits = in_base(magnitude(number), decimal ? 'd' : c.type);
  if (c.precision > static_cast<int64_t>(digits.size()))
    digits.insert(0, spaces(work, "0", c.precision - static_cast<int64_t>(digits.size())));
  const std::string prefix = c.alternate && !decimal ? std::string("0") + c.type : "";
  return percent_number(work, c, (number < 0 ? "-" : "") + digits, prefix, true);
}

std::string percent_text(Work& work, const Conversion& c, const Value& format, const Value& value) {
  std::string text;
  if (c.type == 'c') {
    if (value.is_integer())
      text = character_of(value.integer());
    else if (value.is_string() && count_characters(value.text()) == 1)
      text = value.text();
    else
      user_error("%c takes a number or one character, found {}", value.type_name());
  } else if (c.type == 's') {
    text = text_of(work, value);
  } else {
    append_text(value, true, work.limits().output, text);
    if (c.type == 'a') {
      const std::vector<uint32_t> codes = code_points(text);
      std::string ascii;
      for (const uint32_t code : codes)
        ascii += code < 0x80      ? std::string(1, static_cast<char>(code))
                 : code < 0x100   ? fmt::format("\\x{:02x}", code)
                 : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                  : fmt::format("\\U{:08x}", code);
      text = ascii;
    }
  }
  if (format.is_markup() && !(c.type == 's' && value.is_markup()))
    text = escaped(work, Value(text));
  Specification s;
  s.width = c.width;
  if (c.precision >= 0) s.precision = c.precision;
  if (c.type == 'c') s.precision = -1;
  s.align = c.left ? '<' : '>';
  return formatted_text(work, text, value, s);
}

std::string percent_field(Work& work, const Conversion& c, const Value& format,
                          const Value& value) {
  switch (c.type) {
    case 's':
    case 'r':
    case 'a':
    case 'c':
      return percent_text(work, c, format, value);
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X':
      return percent_integer(work, c, value);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G': {
      if (!value.is_number())
        user_error("%{} takes a number, found {}", std::string(1, c.type), value.type_name());
      const double number = value.number();
      return percent_number(
          work, c, converted(number, c.type, c.precision < 0 ? 6 : c.precision, c.alternate), "",
          true);
    }
    default:
      user_error("the format character '{}' is not supported", std::string(1, c.type));
  }
}

}  // namespace

Value format_percent(Work& work, const Value& format, const Value& arguments) {
  std::string out;
  PercentArguments given(work, arguments);
  std::string_view text = format.text();
  work.spend_text(text.size());
  while (!text.empty()) {
    const size_t at = text.find('%');
    out += text.substr(0, at);
    if (at == std::string_view::npos) break;
    text.remove_prefix(at + 1);
    if (text.empty()) user_error("the format ends inside a field");
    Conversion c;
    const bool bare = text[0] == '%';
    std::optional<Value> named;
    if (text[0] == '(') {
      int open = 0;
      size_t end = 0;
      for (; end < text.size(); ++end) {
        open += text[end] == '(' ? 1 : text[end] == ')' ? -1 : 0;
        if (open == 0) break;
      }
      if (end == text.size()) user_error("the format has a field whose name does not end");
      named = given.named(std::string(text.substr(1, end - 1)));
      text.remove_prefix(end + 1);
    }
    for (; !text.empty(); text.remove_prefix(1)) {
      bool* const flag = text[0] == '#'   ? &c.alternate
                         : text[0] == '0' ? &c.zero
                         : text[0] == '-' ? &c.left
                         : text[0] == ' ' ? &c.space
                         : text[0] == '+' ? &c.plus
                                          : nullptr;
      if (!flag) break;
      *flag = true;
    }
    if (text.starts_with('*')) {
      text.remove_prefix(1);
      c.width = star(given);
      c.left = c.left || c.width < 0;
      c.width = c.width < 0 ? -std::max(c.width, -std::numeric_limits<int64_t>::max()) : c.width;
    } else {
      c.width = std::max<int64_t>(take_number(text), 0);
    }
    if (text.starts_with('.')) {
      text.remove_prefix(1);
      if (text.starts_with('*')) {
        text.remove_prefix(1);
        c.precision = std::max<int64_t>(star(given), 0);
      } else {
        c.precision = std::max<int64_t>(take_number(text), 0);
      }
    }
    while (!text.empty() && std::string_view("hlL").find(text[0]) != std::string_view::npos)
      text.remove_prefix(1);
    if (text.empty()) user_error("the format ends inside a field");
    c.type = text[0];
    text.remove_prefix(1);
    if (c.type == '%') {
      if (!bare) user_error("the format character '%' is not supported");
      out += '%';
      continue;
    }
    work.spend_text(static_cast<size_t>(std::clamp<int64_t>(c.width, 0, INT64_MAX)));
    out += percent_field(work, c, format, named ? *named : given.next());
    if (out.size() > work.limits().output)
      user_error("a text has more than {} bytes", work.limits().output);
  }
  given.check_all_used();
  return made_like(work, format, std::move(out));
}

}  // namespace brrr::jinja
