#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "text/jinja/python_text.h"

namespace brrr::jinja {
namespace {

/// Adds a value to the size of a container that holds it.
void add_part(const Value& value, Value::Size& size) {
  if (value.space() || value.loop() || value.macro() || value.as<Function>())
    user_error("{} cannot be put into a list, a dictionary or a namespace", value.type_name());
  const Value::Size part = value.size();
  size.depth = std::max(size.depth, part.depth + 1);
  size.parts += part.parts;
  if (size.depth > Value::kDeepest)
    user_error("a value is nested more than {} levels deep", Value::kDeepest);
  if (size.parts > Value::kMostParts)
    user_error("a value has more than {} parts", Value::kMostParts);
}

void check_size(const std::string& out, size_t most) {
  if (out.size() > most) user_error("a value has more than {} bytes as text", most);
}

std::string text_of_double(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
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
      if (code == 0x7f)
        out += '\x7f';
      else
        out += fmt::format("\\u{:04x}", code);
    } else if (ascii && code >= 0x10000) {
      const uint32_t rest = code - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
    } else {
      append_code_point(code, out);
    }
  }
  out += '"';
}

/// How a key is written as the name of a member.
std::string json_key(const Value& key) {
  if (key.is_string()) return key.text();
  if (key.is_bool()) return key.integer() ? "true" : "false";
  if (key.is_none()) return "null";
  return to_text(key);
}

}  // namespace

Value Value::undefined(std::string name) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(name))};
  return value;
}

Value Value::list(std::vector<Value> items, bool tuple) {
  Size size{.depth = 1};
  for (const Value& item : items) add_part(item, size);
  Value value;
  value.data_ = std::make_shared<const List>(List{std::move(items), tuple, size});
  return value;
}

Value Value::dict(std::vector<std::pair<Value, Value>> items) {
  Dict dict{.size = {.depth = 1}};
  // A dictionary of literals is short; one of JSON has no key twice.
  for (auto& [key, value] : items) {
    if (!key.is_string() && !key.is_number() && !key.is_none())
      user_error("{} cannot be the key of a dictionary", key.type_name());
    add_part(value, dict.size);
    if (const Value* known = dict.find(key))
      *const_cast<Value*>(known) = std::move(value);
    else
      dict.items.emplace_back(std::move(key), std::move(value));
  }
  Value value;
  value.data_ = std::make_shared<const Dict>(std::move(dict));
  return value;
}

Value Value::from_json(const nlohmann::ordered_json& json) {
  // Members are added without looking for their keys: JSON that was parsed has each once.
  const auto read = [](const auto& self, const nlohmann::ordered_json& j, int level) -> Value {
    if (level > kDeepest) user_error("a value is nested more than {} levels deep", kDeepest);
    switch (j.type()) {
      case nlohmann::ordered_json::value_t::boolean:
        return j.get<bool>();
      case nlohmann::ordered_json::value_t::number_unsigned:
        if (j.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
          user_error("the integer {} has more than 64 bits", j.get<uint64_t>());
        return static_cast<int64_t>(j.get<uint64_t>());
      case nlohmann::ordered_json::value_t::number_integer:
        return j.get<int64_t>();
      case nlohmann::ordered_json::value_t::number_float:
        return j.get<double>();
      case nlohmann::ordered_json::value_t::string:
        return j.get_ref<const std::string&>();
      case nlohmann::ordered_json::value_t::array: {
        std::vector<Value> items;
        for (const auto& item : j) items.push_back(self(self, item, level + 1));
        return list(std::move(items));
      }
      case nlohmann::ordered_json::value_t::object: {
        Dict dict{.size = {.depth = 1}};
        for (const auto& [key, item] : j.items()) {
          dict.items.emplace_back(key, self(self, item, level + 1));
          add_part(dict.items.back().second, dict.size);
        }
        Value value;
        value.data_ = std::make_shared<const Dict>(std::move(dict));
        return value;
      }
      default:
        return {};
    }
  };
  return read(read, json, 0);
}

const List* Value::list() const {
  const auto* found = as<std::shared_ptr<const List>>();
  return found ? found->get() : nullptr;
}
const Dict* Value::dict() const {
  const auto* found = as<std::shared_ptr<const Dict>>();
  return found ? found->get() : nullptr;
}
Namespace* Value::space() const {
  const auto* found = as<std::shared_ptr<Namespace>>();
  return found ? found->get() : nullptr;
}
const Loop* Value::loop() const {
  const auto* found = as<std::shared_ptr<Loop>>();
  return found ? found->get() : nullptr;
}
const Macro* Value::macro() const {
  const auto* found = as<const Macro*>();
  return found ? *found : nullptr;
}

Value::Size Value::size() const {
  constexpr size_t kBytesOfPart = 64;  // of a string: what compares values also reads their texts
  if (is_string()) return {.parts = 1 + text().size() / kBytesOfPart};
  return list() ? list()->size : dict() ? dict()->size : Size();
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_integer()) return integer() != 0;
  if (is_number()) return number() != 0;
  if (is_string()) return !text().empty();
  if (list()) return !list()->items.empty();
  if (dict()) return !dict()->items.empty();
  return true;
}

const char* Value::type_name() const {
  if (is_undefined()) return "an undefined value";
  if (is_none()) return "none";
  if (is_bool()) return "a boolean";
  if (is_integer()) return "an integer";
  if (is_number()) return "a number";
  if (is_string()) return "a string";
  if (list()) return list()->tuple ? "a tuple" : "a list";
  if (dict()) return "a dictionary";
  if (space()) return "a namespace";
  if (loop()) return "the variable loop";
  return macro() ? "a macro" : "a function";
}

const Value* Dict::find(const Value& key) const {
  for (const auto& [name, value] : items)
    if (equal(name, key)) return &value;
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items)
    if (name.is_string() && name.text() == key) return &value;
  return nullptr;
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [member, value] : members)
    if (member == name) return &value;
  return nullptr;
}

void Namespace::set(const std::string& name, Value value) {
  Value::Size size;
  add_part(value, size);
  for (auto& [member, old] : members)
    if (member == name) {
      old = std::move(value);
      return;
    }
  members.emplace_back(name, std::move(value));
}

bool equal(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.is_string() && b.is_string()) return a.text() == b.text();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.list() && b.list())
    return a.list()->tuple == b.list()->tuple &&
           (a.list() == b.list() ||
            std::equal(a.list()->items.begin(), a.list()->items.end(), b.list()->items.begin(),
                       b.list()->items.end(), equal));
  if (a.dict() && b.dict()) {
    if (a.dict() == b.dict()) return true;
    if (a.dict()->items.size() != b.dict()->items.size()) return false;
    return std::all_of(a.dict()->items.begin(), a.dict()->items.end(), [&](const auto& item) {
      const Value* other = b.dict()->find(item.first);
      return other && equal(item.second, *other);
    });
  }
  if (a.space() || b.space()) return a.space() == b.space();
  if (a.macro() || b.macro()) return a.macro() == b.macro();
  return false;
}

bool less(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() < b.integer();
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  // The order of code points is that of the bytes of UTF-8.
  if (a.is_string() && b.is_string()) return a.text() < b.text();
  if (a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
    const std::vector<Value>&x = a.list()->items, &y = b.list()->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(x[i], y[i])) return less(x[i], y[i]);
    return x.size() < y.size();
  }
  user_error("{} and {} have no order", a.type_name(), b.type_name());
}

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
    out += text_of_double(value.number());
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
    out += '{';
    for (size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) out += ", ";
      append_text(dict->items[i].first, true, most, out);
      out += ": ";
      append_text(dict->items[i].second, true, most, out);
    }
    out += '}';
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

void append_json(const Value& value, const JsonStyle& style, int level, size_t most,
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
  } else if (value.is_integer()) {
    out += std::to_string(value.integer());
  } else if (value.is_number()) {
    const double number = value.number();
    out += std::isnan(number)   ? "NaN"
           : std::isinf(number) ? (number < 0 ? "-Infinity" : "Infinity")
                                : text_of_double(number);
  } else if (value.is_string()) {
    append_json_string(value.text(), style.ascii, out);
  } else if (const List* list = value.list()) {
    out += '[';
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) separate();
      new_line(level + 1);
      append_json(list->items[i], style, level + 1, most, out);
    }
    if (!list->items.empty()) new_line(level);
    out += ']';
  } else if (const Dict* dict = value.dict()) {
    std::vector<std::pair<Value, Value>> items = dict->items;
    if (style.sorted)
      std::stable_sort(items.begin(), items.end(),
                       [](const auto& a, const auto& b) { return less(a.first, b.first); });
    out += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) separate();
      new_line(level + 1);
      append_json_string(json_key(items[i].first), style.ascii, out);
      out += style.key_separator;
      append_json(items[i].second, style, level + 1, most, out);
    }
    if (!items.empty()) new_line(level);
    out += '}';
  } else {
    user_error("{} cannot be written as JSON", value.type_name());
  }
  check_size(out, most);
}

}  // namespace brrr::jinja
