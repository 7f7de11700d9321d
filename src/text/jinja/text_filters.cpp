#include <algorithm>

#include "text/jinja/filters.h"
#include "text/jinja/python_format.h"
#include "text/jinja/python_text.h"

namespace brrr::jinja {
namespace {

/// The text of a value as a string: markup stays markup.
Value soft_text(Work& work, const Value& value) {
  return value.is_string() ? value : Value(text_of(work, value));
}

Value change_text(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"s"});
  const Value value = soft_text(work, input);
  const std::string& text = value.text();
  if (name == "title") return work.made(title_of_filter(text));
  return made_like(work, value,
                   name == "upper"   ? upper(text)
                   : name == "lower" ? lower(text)
                                     : capitalize(text));
}

Value trim(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"chars"});
  const Value value = soft_text(work, input);
  const bool has_set = given.find_some(0, "chars") != nullptr;
  const std::string chars = has_set ? given.text(0, "chars", "") : "";
  work.spend_search(value.text(), chars);
  return made_like(work, value,
                   std::string(strip(value.text(), has_set ? &chars : nullptr, true, true)));
}

Value replace_text(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"old", "new", "count"}, 2);
  const std::string text = text_of(work, input), from = text_of(work, *given.find(0, "old")),
                    to = text_of(work, *given.find(1, "new"));
  const int64_t most = given.find_some(2, "count") ? given.integer(2, "count", -1) : -1;
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
  return soft_text(work, input);
}

Value escape_html(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  const bool again = name == "forceescape" && input.is_markup();
  return Value::markup(escaped(work, again ? Value(input.text()) : input));
}

Value mark_safe(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  return input.is_markup() ? input : Value::markup(text_of(work, input));
}

Value center(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"width"});
  Given width;
  width.places.emplace_back(given.integer(0, "width", 80));
  return call_method(work, soft_text(work, input), "center", width);
}

Value truncate(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"length", "killwords", "end", "leeway"});
  const std::optional<int64_t> count = length_of(input);
  if (!count) user_error("{} takes a string, found {}", name, input.type_name());
  const std::string end = given.text(2, "end", "...");
  const int64_t length = given.integer(0, "length", 255);
  const int64_t leeway = given.find_some(3, "leeway") ? given.integer(3, "leeway", 5) : 5;
  const auto end_length = static_cast<int64_t>(count_characters(end));
  if (length < end_length || leeway < 0)
    user_error("{} takes a length of at least that of its end, and a leeway of at least 0", name);
  if (*count - leeway <= length) return input;
  if (!input.is_string()) user_error("{} takes a string, found {}", name, input.type_name());
  const Value stop(length - end_length);
  Value cut = slice(work, input, nullptr, &stop, nullptr);
  if (!given.flag(1, "killwords", false))
    cut = Value(std::string(split(cut.text(), " ", 1, true).front()));
  return binary(work, "+", input.is_markup() ? Value::markup(cut.text()) : cut, Value(end));
}

Value indent(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"width", "first", "blank"});
  if (!input.is_string()) user_error("{} takes a string, found {}", name, input.type_name());
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
  const std::string text = input.text() + "\n";
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
  return made_like(work, input, std::move(out));
}

Value word_count(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  int64_t count = 0;
  bool inside = false;
  for (const uint32_t code : code_points(text_of(work, input))) {
    const bool word = continues_word(code);
    if (word && !inside) ++count;
    inside = word;
  }
  return count;
}

Value format(Work& work, const std::string& name, const Value& input, const Given& given) {
  const Value value = soft_text(work, input);
  if (given.names.empty()) return format_percent(work, value, Value::list(given.places, true));
  if (!given.places.empty()) user_error("{} takes values by place or by name, not both", name);
  std::vector<std::pair<Value, Value>> members;
  for (const auto& [key, member] : given.names) members.emplace_back(key, member);
  return format_percent(work, value, Value::dict(work, std::move(members)));
}

/// A text in a URL; `in_query`: also "/" is quoted, and a space is "+".
std::string quoted_for_url(Work& work, const Value& value, bool in_query) {
  std::string out;
  for (const char c : text_of(work, value)) {
    const bool letter = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    if (letter || std::string_view("_.-~").find(c) != std::string_view::npos ||
        (c == '/' && !in_query))
      out += c;
    else if (c == ' ' && in_query)
      out += '+';
    else
      out += fmt::format("%{:02X}", static_cast<uint8_t>(c));
  }
  return out;
}

Value url_encode(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  if (input.is_string() || (!length_of(input) && !input.iterator()))
    return work.made(quoted_for_url(work, input, false));
  std::string out;
  const Value pairs = input.dict() ? Value::view("items", input) : input;
  for (const Value& pair : elements(work, pairs)) {
    const std::vector<Value> both = elements(work, pair);
    if (both.size() != 2) user_error("{} takes pairs of a name and a value", name);
    if (!out.empty()) out += '&';
    out += quoted_for_url(work, both[0], true) + "=" + quoted_for_url(work, both[1], true);
  }
  return work.made(std::move(out));
}

Value to_json(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = given.flag(0, "ensure_ascii", false);
  style.sorted = given.flag(3, "sort_keys", false);
  if (const Value* indent = given.find_some(1, "indent")) {
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
  if (const Value* both = given.find_some(2, "separators")) {
    const List* list = both->list();
    if (!list || list->items.size() != 2 || !list->items[0].is_string() ||
        !list->items[1].is_string())
      user_error("{} takes two strings as 'separators'", name);
    style.item_separator = list->items[0].text();
    style.key_separator = list->items[1].text();
  }
  work.spend(input.size().parts);
  std::string out;
  append_json(work, input, style, 0, work.limits().output, out);
  return work.made(std::move(out));
}

constexpr Filter kTextFilters[] = {{"upper", change_text},
                                   {"lower", change_text},
                                   {"title", change_text},
                                   {"capitalize", change_text},
                                   {"trim", trim},
                                   {"replace", replace_text},
                                   {"string", string_of},
                                   {"escape", escape_html},
                                   {"e", escape_html},
                                   {"forceescape", escape_html},
                                   {"safe", mark_safe},
                                   {"center", center},
                                   {"truncate", truncate},
                                   {"indent", indent},
                                   {"wordcount", word_count},
                                   {"format", format},
                                   {"urlencode", url_encode},
                                   {"tojson", to_json}};

}  // namespace

std::span<const Filter> text_filters() { return kTextFilters; }

}  // namespace brrr::jinja
