#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "text/jinja/python_numbers.h"
#include "text/jinja/python_text.h"
#include "text/jinja/syntax.h"
#include "text/jinja/value.h"

// Values as text: str(), repr() and JSON.

namespace brrr::jinja {
namespace {

void check_size(const std::string& out, size_t most) {
  if (out.size() > most) user_error("a value has more than {} bytes as text", most);
}

/// A string in JSON's quotes.
void append_json_string(std::string_view text, bool ascii, std::string& out) {
  out += '"';
  for (const uint32_t code : code_points(text)) {
    switch (code) {
      case '"':
        out += "\\\"";
        continue;
      case '\\':
        out += "\\\\";
        continue;
      case '\n':
        out += "\\n";
        continue;
      case '\r':
        out += "\\r";
        continue;
      case '\t':
        out += "\\t";
        continue;
      case '\b':
        out += "\\b";
        continue;
      case '\f':
        out += "\\f";
        continue;
      default:
        break;
    }
    if (code < 0x20 || (ascii && code > 0x7e && code < 0x10000)) {
      out += fmt::format("\\u{:04x}", code);
    } else if (ascii && code >= 0x10000 && code < kByte) {
      const uint32_t rest = code - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
    } else {
      append_code_point(code, out);
    }
  }
  out += '"';
}

[[noreturn]] std::string not_json(const Value& value) {
  user_error("{} cannot be written as JSON", value.type_name());
}

std::string json_number(const Value& value) {
  if (value.is_integer()) return std::to_string(value.integer());
  const double number = value.number();
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
  return text_of_real(number);
}

/// How a key is written as the name of a member.
std::string json_key(const Value& key) {
  if (key.is_string()) return key.text();
  if (key.is_bool()) return key.integer() ? "true" : "false";
  if (key.is_none()) return "null";
  return key.is_number() ? json_number(key) : not_json(key);
}

void append_members(const std::vector<std::pair<Value, Value>>& members, size_t most,
                    std::string& out) {
  out += '{';
  for (size_t i = 0; i < members.size(); ++i) {
    if (i > 0) out += ", ";
    append_text(members[i].first, true, most, out);
    out += ": ";
    append_text(members[i].second, true, most, out);
  }
  out += '}';
}

}  // namespace

void append_text(const Value& value, bool quoted, size_t most, std::string& out) {
  if (value.is_undefined()) {
    if (quoted) out += "Undefined";
  } else if (value.is_none()) {
    out += "None";
  } else if (value.is_bool()) {
    out += value.integer() ? "True" : "False";
  } else if (value.is_integer()) {
    out += std::to_string(value.integer());
  } else if (value.is_number()) {
    out += text_of_real(value.number());
  } else if (value.is_markup() && quoted) {
    out += "Markup(" + python_quoted(value.text()) + ")";
  } else if (value.is_string()) {
    out += quoted ? python_quoted(value.text()) : value.text();
  } else if (const List* list = value.list()) {
    out += list->tuple ? '(' : '[';
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out += ", ";
      append_text(list->items[i], true, most, out);
    }
    if (list->tuple && list->items.size() == 1) out += ',';
    out += list->tuple ? ')' : ']';
  } else if (const Dict* dict = value.dict()) {
    append_members(dict->items, most, out);
  } else if (const Range* range = value.range()) {
    out += fmt::format("range({}, {}", range->start, range->stop);
    out += range->step == 1 ? ")" : fmt::format(", {})", range->step);
  } else if (const View* view = value.view()) {
    static constexpr const char* kNames[] = {"keys", "values", "items"};
    out += fmt::format("dict_{}([", kNames[static_cast<int>(view->kind)]);
    for (int64_t i = 0; i < view->count(); ++i) {
      if (i > 0) out += ", ";
      append_text(view->at(i), true, most, out);
    }
    out += "])";
  } else if (const Namespace* space = value.space()) {
    std::vector<std::pair<Value, Value>> members;
    for (const auto& [name, member] : space->members) members.emplace_back(name, member);
    out += "<Namespace ";
    append_members(members, most, out);
    out += '>';
  } else if (const Macro* macro = value.macro()) {
    out += "<Macro " + python_quoted(macro->name) + ">";
  } else if (Loop* loop = value.loop()) {
    out += fmt::format("<LoopContext {}/{}>", loop->index + 1, loop->length());
  } else if (value.iterator()) {
    user_error(
        "an iterator cannot be printed (Python shows its address); write `| list` behind it");
  } else {
    user_error("{} cannot be printed", value.type_name());
  }
  check_size(out, most);
}

namespace {
constexpr size_t kLongestText = size_t{1} << 26;
}

std::string to_text(const Value& value) {
  std::string out;
  append_text(value, false, kLongestText, out);
  return out;
}

std::string to_repr(const Value& value) {
  std::string out;
  append_text(value, true, kLongestText, out);
  return out;
}

void append_json(Effort& effort, const Value& value, const JsonStyle& style, int level, size_t most,
                 std::string& out) {
  const auto new_line = [&](int deep) {
    if (style.indent < 0) return;
    out += '\n';
    for (int i = 0; i < deep; ++i) {
      out += style.indent_text;
      check_size(out, most);
    }
  };
  const auto separate = [&] {
    out += style.item_separator;
    check_size(out, most);
  };
  if (value.is_none()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.integer() ? "true" : "false";
  } else if (value.is_number()) {
    out += json_number(value);
  } else if (value.is_string()) {
    append_json_string(value.text(), style.ascii, out);
  } else if (const List* list = value.list()) {
    out += '[';
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) separate();
      new_line(level + 1);
      append_json(effort, list->items[i], style, level + 1, most, out);
    }
    if (!list->items.empty()) new_line(level);
    out += ']';
  } else if (const Dict* dict = value.dict()) {
    std::vector<std::pair<Value, Value>> items = dict->items;
    if (style.sorted)
      std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
        return less(effort, a.first, b.first);
      });
    out += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) separate();
      new_line(level + 1);
      append_json_string(json_key(items[i].first), style.ascii, out);
      out += style.key_separator;
      append_json(effort, items[i].second, style, level + 1, most, out);
    }
    if (!items.empty()) new_line(level);
    out += '}';
  } else {
    not_json(value);
  }
  check_size(out, most);
}

}  // namespace brrr::jinja
