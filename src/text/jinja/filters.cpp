#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <type_traits>

#include "text/jinja/builtins.h"
#include "text/jinja/python_text.h"

namespace brrr::jinja {
namespace {

struct Filter {
  std::string_view name;
  Value (*call)(Work& work, const std::string& name, const Value& input, const Given& given);
};

// ---- Text

Value change_text(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  const std::string text = text_of(work, input);
  return work.made(name == "upper"   ? upper(text)
                   : name == "lower" ? lower(text)
                   : name == "title" ? title_of_filter(text)
                                     : capitalize(text));
}

Value trim(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"chars"});
  const std::string text = text_of(work, input);
  const Value* set = given.find(0, "chars");
  const bool has_set = set && !set->is_none();
  const std::string chars = has_set ? given.text(0, "chars", "") : "";
  work.spend_search(text, chars);
  return work.made(std::string(strip(text, has_set ? &chars : nullptr, true, true)));
}

Value replace_text(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"old", "new", "count"}, 2);
  const std::string text = text_of(work, input), from = text_of(work, *given.find(0, "old")),
                    to = text_of(work, *given.find(1, "new"));
  const Value* count = given.find(2, "count");
  const int64_t most = count && !count->is_none() ? given.integer(2, "count", -1) : -1;
  work.spend_search(text, from);
  // What it becomes is known before it is made.
  const size_t places = from.empty() ? text.size() + 1 : text.size() / from.size();
  if (to.size() > from.size() && places > work.limits().output / (to.size() - from.size())) {
    size_t found = 0;
    for (size_t at = 0; !from.empty() && (at = text.find(from, at)) != std::string::npos;
         at += from.size())
      ++found;
    if (from.empty()) found = places;
    work.spend_text(std::min(found, work.limits().output) * (to.size() - from.size()));
  }
  return work.made(replace(text, from, to, most));
}

Value string_of(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  return input.is_string() ? input : Value(text_of(work, input));
}

Value escape_html(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  std::string out;
  for (const char c : text_of(work, input)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return work.made(std::move(out));
}

Value indent(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"width", "first", "blank"});
  const Value* width = given.find(0, "width");
  std::string space;
  if (width && width->is_string()) {
    space = width->text();
  } else {
    const int64_t count = std::max<int64_t>(given.integer(0, "width", 4), 0);
    work.spend_text(static_cast<size_t>(count));
    space.assign(static_cast<size_t>(count), ' ');
  }
  const bool blank = given.flag(2, "blank", false);
  const std::string text = text_of(work, input) + "\n";
  std::string out = given.flag(1, "first", false) ? space : "";
  bool first = true;
  for (const std::string_view line : split_lines(text)) {
    if (!std::exchange(first, false)) {
      out += '\n';
      if (blank || !line.empty()) out += space;
    }
    out += line;
    work.spend_text(space.size() + line.size());
    if (out.size() > work.limits().output)
      user_error("a text has more than {} bytes", work.limits().output);
  }
  return Value(std::move(out));
}

Value word_count(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  int64_t count = 0;
  bool inside = false;
  for (const uint32_t code : code_points(text_of(work, input))) {
    std::string character;
    append_code_point(code, character);
    const bool word = code == '_' || all_are(character, CharClass::alphanumeric);
    if (word && !inside) ++count;
    inside = word;
  }
  return count;
}

Value to_json(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = given.flag(0, "ensure_ascii", false);
  style.sorted = given.flag(3, "sort_keys", false);
  if (const Value* indent = given.find(1, "indent"); indent && !indent->is_none()) {
    style.indent = 1;
    if (indent->is_string()) {
      style.indent_text = indent->text();
    } else {
      const int64_t count = std::max<int64_t>(given.integer(1, "indent", 0), 0);
      work.spend_text(static_cast<size_t>(count));
      style.indent_text.assign(static_cast<size_t>(count), ' ');
    }
    style.item_separator = ",";
  }
  if (const Value* both = given.find(2, "separators"); both && !both->is_none()) {
    const List* list = both->list();
    if (!list || list->items.size() != 2 || !list->items[0].is_string() ||
        !list->items[1].is_string())
      user_error("{} takes two strings as 'separators'", name);
    style.item_separator = list->items[0].text();
    style.key_separator = list->items[1].text();
  }
  work.spend(input.size().parts);
  std::string out;
  append_json(input, style, 0, work.limits().output, out);
  return work.made(std::move(out));
}

// ---- Numbers

/// A number in a text, white space around it; nothing where it is none.
template <typename Number>
std::optional<Number> number_in(const std::string& text, int base) {
  std::string_view digits = strip(text, nullptr, true, true);
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
  Number value{};
  std::from_chars_result result{};
  if constexpr (std::is_same_v<Number, int64_t>)
    result = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  else
    result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ec != std::errc() || result.ptr != digits.data() + digits.size() || digits.empty())
    return std::nullopt;
  return value;
}

bool fits_integer(double value) { return value > -9.2e18 && value < 9.2e18; }

Value to_integer(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"default", "base"});
  const Value* otherwise = given.find(0, "default");
  const int64_t base = given.integer(1, "base", 10);
  if (base < 2 || base > 36) user_error("{} takes a base from 2 to 36, found {}", name, base);
  if (input.is_integer()) return input.integer();
  double value = 0;
  if (input.is_string()) {
    work.spend_text(input.text().size());
    if (const auto found = number_in<int64_t>(input.text(), static_cast<int>(base))) return *found;
    const auto real = number_in<double>(input.text(), 10);
    if (!real) return otherwise ? *otherwise : Value(int64_t{0});
    value = *real;
  } else if (input.is_number()) {
    value = input.number();
  } else {
    return otherwise ? *otherwise : Value(int64_t{0});
  }
  if (!fits_integer(value)) return otherwise ? *otherwise : Value(int64_t{0});
  return static_cast<int64_t>(value);
}

Value to_real(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"default"});
  if (input.is_number()) return input.number();
  if (input.is_string()) {
    work.spend_text(input.text().size());
    if (const auto found = number_in<double>(input.text(), 10)) return *found;
  }
  const Value* otherwise = given.find(0, "default");
  return otherwise ? *otherwise : Value(0.0);
}

void check_number(const std::string& name, const Value& input) {
  if (!input.is_number()) user_error("{} takes a number, found {}", name, input.type_name());
}

Value absolute(Work&, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  check_number(name, input);
  if (!input.is_integer()) return std::fabs(input.number());
  if (input.integer() == INT64_MIN) user_error("an integer has more than 64 bits");
  return std::abs(input.integer());
}

Value round_number(Work&, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"precision", "method"});
  check_number(name, input);
  const int64_t precision = std::clamp<int64_t>(given.integer(0, "precision", 0), -300, 300);
  const std::string method = given.text(1, "method", "common");
  const double scale = std::pow(10.0, static_cast<double>(precision)), value = input.number();
  if (method == "ceil") return std::ceil(value * scale) / scale;
  if (method == "floor") return std::floor(value * scale) / scale;
  if (method != "common") user_error("{} knows common, ceil and floor", name);
  if (input.is_integer() && precision >= 0) return input;
  if (precision > 0 && precision < 40 && std::fabs(value) < 1e20) {
    // Python rounds the exact value of the double, as printing does.
    const std::string digits = fmt::format("{:.{}f}", value, precision);
    double rounded = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), rounded);
    return rounded;
  }
  const double rounded = std::nearbyint(value * scale) / scale;
  return std::isfinite(rounded) ? rounded : value;
}

// ---- Lists

/// What a path like "function.name" or "0.role" leads to; `fallback` where a step leads nowhere.
Value follow(Work& work, Value value, const Value& path, const Value* fallback = nullptr) {
  if (!path.is_string()) return item_of(work, value, path);
  for (const std::string_view part : split(path.text(), ".", -1, false)) {
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = error == std::errc() && end == part.data() + part.size();
    value = item_of(work, value, number ? Value(index) : Value(part));
    if (value.is_undefined() && fallback) value = *fallback;
  }
  return value;
}

/// The elements, each as `attribute` asks for.
std::vector<Value> elements_by(Work& work, const Value& input, const Value* attribute,
                               const Value* fallback = nullptr) {
  std::vector<Value> items = elements(work, input);
  if (attribute && !attribute->is_none())
    for (Value& item : items) item = follow(work, item, *attribute, fallback);
  return items;
}

Value first_or_last(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  const std::vector<Value> items = elements(work, input);
  if (items.empty()) return Value::undefined("the " + name + " element of what is empty");
  return name == "first" ? items.front() : items.back();
}

Value length(Work&, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  if (input.is_string()) return static_cast<int64_t>(count_characters(input.text()));
  if (input.list()) return static_cast<int64_t>(input.list()->items.size());
  if (input.dict()) return static_cast<int64_t>(input.dict()->items.size());
  if (input.is_undefined()) return int64_t{0};
  user_error("{} has no length", input.type_name());
}

Value to_list(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  return Value::list(elements(work, input));
}

Value reverse(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  std::vector<Value> items = elements(work, input);
  std::reverse(items.begin(), items.end());
  if (!input.is_string()) return Value::list(std::move(items));
  std::string out;
  for (const Value& item : items) out += item.text();
  return work.made(std::move(out));
}

Value join(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"d", "attribute"});
  const Value* between = given.find(0, "d");
  const std::string separator = between ? text_of(work, *between) : "";
  std::string out;
  bool first = true;
  for (const Value& item : elements_by(work, input, given.find(1, "attribute"))) {
    if (!std::exchange(first, false)) out += separator;
    out += text_of(work, item);
    work.spend_text(separator.size());
    if (out.size() > work.limits().output)
      user_error("a text has more than {} bytes", work.limits().output);
  }
  return Value(std::move(out));
}

/// By what texts are compared that differ in case alone.
Value without_case(Work& work, const Value& value, bool ignores) {
  return ignores && value.is_string() ? work.made(lower(value.text())) : value;
}

bool ordered(Work& work, const Value& a, const Value& b) {
  work.spend(std::min(a.size().parts, b.size().parts));
  return less(a, b);
}

std::vector<Value> sorted(Work& work, const std::vector<Value>& items,
                          const std::vector<Value>& keys, bool backwards) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return backwards ? ordered(work, keys[b], keys[a]) : ordered(work, keys[a], keys[b]);
  });
  std::vector<Value> out;
  for (const size_t i : order) out.push_back(items[i]);
  return out;
}

Value sort(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> keys = elements_by(work, input, given.find(2, "attribute"));
  for (Value& key : keys) key = without_case(work, key, !given.flag(1, "case_sensitive", false));
  return Value::list(sorted(work, elements(work, input), keys, given.flag(0, "reverse", false)));
}

Value sort_dict(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"case_sensitive", "by", "reverse"});
  if (!input.dict()) user_error("{} takes a dictionary, found {}", name, input.type_name());
  const std::string by = given.text(1, "by", "key");
  if (by != "key" && by != "value") user_error("{} sorts by 'key' or 'value'", name);
  std::vector<Value> items, keys;
  for (const auto& [key, value] : input.dict()->items) {
    items.push_back(Value::list({key, value}, true));
    keys.push_back(
        without_case(work, by == "key" ? key : value, !given.flag(0, "case_sensitive", false)));
  }
  return Value::list(sorted(work, items, keys, given.flag(2, "reverse", false)));
}

Value unique(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"case_sensitive", "attribute"});
  const std::vector<Value> items = elements(work, input);
  std::vector<Value> keys = elements_by(work, input, given.find(1, "attribute")), seen, out;
  for (size_t i = 0; i < items.size(); ++i) {
    const Value key = without_case(work, keys[i], !given.flag(0, "case_sensitive", false));
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      work.spend(1 + std::min(key.size().parts, other.size().parts));
      return equal(key, other);
    });
    if (known) continue;
    seen.push_back(key);
    out.push_back(items[i]);
  }
  return Value::list(std::move(out));
}

Value extreme(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"case_sensitive", "attribute"});
  const std::vector<Value> items = elements(work, input);
  std::vector<Value> keys = elements_by(work, input, given.find(1, "attribute"));
  if (items.empty()) return Value::undefined("the " + name + " of what is empty");
  size_t best = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    keys[i] = without_case(work, keys[i], !given.flag(0, "case_sensitive", false));
    if (name == "min" ? ordered(work, keys[i], keys[best]) : ordered(work, keys[best], keys[i]))
      best = i;
  }
  return items[best];
}

Value sum(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"attribute", "start"});
  const Value* start = given.find(1, "start");
  Value total = start ? *start : Value(int64_t{0});
  for (const Value& item : elements_by(work, input, given.find(0, "attribute")))
    total = binary(work, "+", total, item);
  return total;
}

Value items_of(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  if (input.is_undefined()) return Value::list({});
  if (!input.dict()) user_error("{} takes a dictionary, found {}", name, input.type_name());
  return call_method(work, input, "items", {});
}

Value otherwise(Work&, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"default_value", "boolean"});
  if (!input.is_undefined() && !(given.flag(1, "boolean", false) && !input.truth())) return input;
  const Value* value = given.find(0, "default_value");
  return value ? *value : Value("");
}

Value unchanged(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  return string_of(work, name, input, given);
}

/// The arguments behind the first `count`, for another filter or test.
Given rest_of(const Given& given, size_t count) {
  Given rest = given;
  rest.places.erase(rest.places.begin(), rest.places.begin() + static_cast<int64_t>(count));
  return rest;
}

Value map(Work& work, const std::string& name, const Value& input, const Given& given) {
  std::vector<Value> out;
  if (given.places.empty()) {
    given.check(name, {"attribute", "default"}, 1);
    out = elements_by(work, input, given.find(0, "attribute"), given.find(1, "default"));
  } else {
    const std::string filter = given.text(0, "", "");
    const Given rest = rest_of(given, 1);
    for (const Value& item : elements(work, input))
      out.push_back(call_filter(work, filter, item, rest));
  }
  return Value::list(std::move(out));
}

/// select, reject, selectattr and rejectattr: the elements for which a test holds, or does not.
Value choose(Work& work, const std::string& name, const Value& input, const Given& given) {
  const bool by_attribute = name.ends_with("attr"), wanted = name.starts_with("select");
  const size_t taken = by_attribute ? 1 : 0;
  if (given.places.size() < taken) user_error("{} needs the name of an attribute", name);
  const bool has_test = given.places.size() > taken;
  const std::string test = has_test ? given.text(taken, "", "") : "";
  const Given rest = has_test ? rest_of(given, taken + 1) : Given();
  std::vector<Value> out;
  for (const Value& item : elements(work, input)) {
    const Value value = by_attribute ? follow(work, item, given.places[0]) : item;
    if ((has_test ? call_test(work, test, value, rest) : value.truth()) == wanted)
      out.push_back(item);
  }
  return Value::list(std::move(out));
}

Value batch(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"linecount", "fill_with"}, 1);
  const int64_t count = given.integer(0, "linecount", 1);
  if (count < 1) user_error("{} takes at least 1, found {}", name, count);
  std::vector<Value> out, part;
  const Value* fill = given.find(1, "fill_with");
  for (Value& item : elements(work, input)) {
    part.push_back(std::move(item));
    if (static_cast<int64_t>(part.size()) == count)
      out.push_back(Value::list(std::exchange(part, {})));
  }
  if (!part.empty()) {
    if (fill && !fill->is_none())
      while (static_cast<int64_t>(part.size()) < count) {
        work.spend(1);
        part.push_back(*fill);
      }
    out.push_back(Value::list(std::move(part)));
  }
  return Value::list(std::move(out));
}

constexpr Filter kFilters[] = {{"upper", change_text},  {"lower", change_text},
                               {"title", change_text},  {"capitalize", change_text},
                               {"trim", trim},          {"replace", replace_text},
                               {"string", string_of},   {"escape", escape_html},
                               {"e", escape_html},      {"safe", unchanged},
                               {"indent", indent},      {"wordcount", word_count},
                               {"tojson", to_json},     {"int", to_integer},
                               {"float", to_real},      {"abs", absolute},
                               {"round", round_number}, {"first", first_or_last},
                               {"last", first_or_last}, {"length", length},
                               {"count", length},       {"list", to_list},
                               {"reverse", reverse},    {"join", join},
                               {"sort", sort},          {"dictsort", sort_dict},
                               {"unique", unique},      {"min", extreme},
                               {"max", extreme},        {"sum", sum},
                               {"items", items_of},     {"default", otherwise},
                               {"d", otherwise},        {"map", map},
                               {"select", choose},      {"reject", choose},
                               {"selectattr", choose},  {"rejectattr", choose},
                               {"batch", batch}};

}  // namespace

bool is_filter(std::string_view name) {
  return std::any_of(std::begin(kFilters), std::end(kFilters),
                     [&](const Filter& filter) { return filter.name == name; });
}

Value call_filter(Work& work, const std::string& name, const Value& input, const Given& given) {
  work.spend(1);
  for (const Filter& filter : kFilters)
    if (filter.name == name) return filter.call(work, name, input, given);
  user_error("the filter '{}' is not supported", name.substr(0, 100));
}

}  // namespace brrr::jinja
