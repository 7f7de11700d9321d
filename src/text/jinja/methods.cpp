#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/python_format.h"
#include "text/jinja/python_text.h"

namespace brrr::jinja {
namespace {

struct Method {
  std::string_view name;
  Value (*call)(Work& work, const Value& value, const std::string& name, const Given& given);
};

Value list_of(Work& work, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(work.made(std::string(part)));
  return Value::list(std::move(items));
}

Value strip_ends(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"/chars"});
  const bool has_set = given.find_some(0, "/chars") != nullptr;
  const std::string chars = has_set ? given.text(0, "/chars", "") : "";
  work.spend_search(value.text(), chars);
  return work.made(std::string(
      strip(value.text(), has_set ? &chars : nullptr, name != "rstrip", name != "lstrip")));
}

Value split_text(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"sep", "maxsplit"});
  std::string text;
  if (given.find_some(0, "sep")) {
    text = given.text(0, "sep", "");
    if (text.empty()) user_error("{} needs a separator that is not empty", name);
  }
  work.spend_search(value.text(), text);
  return list_of(work,
                 split(value.text(), text, given.integer(1, "maxsplit", -1), name == "rsplit"));
}

Value split_into_lines(Work& work, const Value& value, const std::string& name,
                       const Given& given) {
  given.check(name, {"keepends"});
  return list_of(work, split_lines(value.text(), given.flag(0, "keepends", false)));
}

/// The part of a text that the arguments at places 1 and 2 name, as slices do; nothing where it
/// begins behind the end. `first` is the number of its first character.
std::optional<std::string_view> stretch(Work& work, const std::string& text, const Given& given,
                                        int64_t& first) {
  first = 0;
  if (!given.find_some(1, "/start") && !given.find_some(2, "/end")) return text;
  work.spend(1 + text.size() / 4);
  const auto count = static_cast<int64_t>(count_characters(text));
  const auto place = [&](size_t i, std::string_view name, int64_t otherwise) {
    if (!given.find_some(i, name)) return otherwise;
    const int64_t at = given.integer(i, name, otherwise);
    return at < 0 ? std::max<int64_t>(at + count, 0) : at;
  };
  first = place(1, "/start", 0);
  const int64_t end = std::min(place(2, "/end", count), count);
  if (first > count || first > end) return std::nullopt;
  size_t begin_byte = 0, end_byte = 0;
  int64_t at = 0;
  for (const uint32_t code : code_points(text)) {
    std::string character;
    append_code_point(code, character);
    if (at < first) begin_byte += character.size();
    if (at < end) end_byte += character.size();
    ++at;
  }
  return std::string_view(text).substr(begin_byte, end_byte - begin_byte);
}

Value begins_or_ends(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"/prefix", "/start", "/end"}, 1);
  int64_t first = 0;
  const auto text = stretch(work, value.text(), given, first);
  const auto fits = [&](const Value& part) {
    if (!part.is_string()) user_error("{} takes a string or a tuple of strings", name);
    work.spend(1 + part.text().size() / 64);
    return text &&
           (name == "startswith" ? text->starts_with(part.text()) : text->ends_with(part.text()));
  };
  const Value& part = given.places[0];
  if (!part.list() || !part.list()->tuple) return fits(part);
  return std::any_of(part.list()->items.begin(), part.list()->items.end(), fits);
}

Value change_case(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {});
  const std::string& text = value.text();
  work.spend_text(text.size());
  return work.made(name == "upper"      ? upper(text)
                   : name == "lower"    ? lower(text)
                   : name == "title"    ? title_of_words(text)
                   : name == "casefold" ? casefold(text)
                   : name == "swapcase" ? swapcase(text)
                                        : capitalize(text));
}

Value replace_parts(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"/old", "/new", "/count"}, 2);
  given.text(0, "/old", "");
  Given strings;
  strings.places = given.places;
  const std::string to = given.text(1, "/new", "");
  strings.places[1] = Value(value.is_markup() ? escaped(work, given.places[1]) : to);
  if (strings.places.size() > 2) strings.places[2] = given.integer(2, "/count", -1);
  return call_filter(work, "replace", value, strings);
}

Value without_end(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"/part"}, 1);
  const std::string part = given.text(0, "/part", "");
  std::string_view text = value.text();
  if (name == "removeprefix" && text.starts_with(part)) text.remove_prefix(part.size());
  if (name == "removesuffix" && text.ends_with(part)) text.remove_suffix(part.size());
  return work.made(std::string(text));
}

Value find_text(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"/sub", "/start", "/end"}, 1);
  const std::string part = given.text(0, "/sub", "");
  int64_t first = 0;
  const auto found = stretch(work, value.text(), given, first);
  const std::string_view text = found.value_or("");
  work.spend_search(text, part);
  if (name == "count") {
    if (!found) return int64_t{0};
    if (part.empty()) return static_cast<int64_t>(count_characters(text) + 1);
    int64_t times = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++times;
    return times;
  }
  const bool from_right = name.starts_with('r');
  const size_t at = from_right ? text.rfind(part) : text.find(part);
  if (found && at != std::string::npos)
    return first + static_cast<int64_t>(count_characters(text.substr(0, at)));
  if (name.ends_with("index")) user_error("{} does not find the text", name);
  return int64_t{-1};
}

Value join_texts(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"/items"}, 1);
  std::string out;
  bool first = true;
  for (const Value& item : elements(work, given.places[0])) {
    if (!item.is_string() && !value.is_markup())
      user_error("join takes strings, found {}", item.type_name());
    if (!std::exchange(first, false)) out += value.text();
    out += value.is_markup() ? escaped(work, item) : item.text();
    work.spend_text(value.text().size() + out.size() / 16);
    if (out.size() > work.limits().output)
      user_error("a text has more than {} bytes", work.limits().output);
  }
  return Value(std::move(out));
}

/// ljust, rjust and center.
Value pad(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"/width", "/fillchar"}, 1);
  std::string fill = given.text(1, "/fillchar", " ");
  if (value.is_markup() && given.places.size() > 1) fill = escaped(work, given.places[1]);
  if (count_characters(fill) != 1) user_error("{} takes one character to fill with", name);
  const auto length = static_cast<int64_t>(count_characters(value.text()));
  const int64_t width = given.integer(0, "/width", 0);
  if (width <= length) return Value(value.text());
  const int64_t missing = width - length;
  work.spend_text(static_cast<size_t>(missing));
  // center() puts the odd space to the left where the width is odd.
  const int64_t left = name == "rjust"   ? missing
                       : name == "ljust" ? 0
                                         : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += value.text();
  for (int64_t i = left; i < missing; ++i) out += fill;
  return work.made(std::move(out));
}

Value fill_with_zeros(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"/width"}, 1);
  std::string text = value.text();
  const int64_t missing =
      given.integer(0, "/width", 0) - static_cast<int64_t>(count_characters(text));
  if (missing <= 0) return Value(std::move(text));
  work.spend_text(static_cast<size_t>(missing));
  const size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  return work.made(text.insert(sign, static_cast<size_t>(missing), '0'));
}

Value partition(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"/sep"}, 1);
  const std::string separator = given.text(0, "/sep", "");
  if (separator.empty()) user_error("{} needs a separator that is not empty", name);
  const std::string& text = value.text();
  work.spend_search(text, separator);
  const bool from_right = name == "rpartition";
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  std::vector<Value> parts = {Value(text), Value(""), Value("")};
  if (at != std::string::npos)
    parts = {work.made(text.substr(0, at)), Value(separator),
             work.made(text.substr(at + separator.size()))};
  else if (from_right)
    std::swap(parts[0], parts[2]);
  return Value::list(std::move(parts), true);
}

Value expand(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"tabsize"});
  const int64_t size = given.integer(0, "tabsize", 8);
  const auto tabs = static_cast<size_t>(std::count(value.text().begin(), value.text().end(), '\t'));
  if (size > 0 && tabs > 0 && size > static_cast<int64_t>(work.limits().output / tabs))
    user_error("a text has more than {} bytes", work.limits().output);
  return work.made(expand_tabs(value.text(), size));
}

Value format_text(Work& work, const Value& value, const std::string& name, const Given& given) {
  if (name == "format") return format_fields(work, value, given);
  given.check(name, {"/mapping"}, 1);
  if (!given.places[0].dict())
    user_error("{} takes a dictionary, found {}", name, given.places[0].type_name());
  Given named;
  for (const auto& [key, member] : given.places[0].dict()->items)
    if (key.is_string()) named.names.emplace_back(key.text(), member);
  return format_fields(work, value, named);
}

Value is_class(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {});
  const std::string& text = value.text();
  work.spend_text(text.size());
  if (name == "isupper" || name == "islower") return all_cased(text, name == "isupper");
  if (name == "istitle") return is_title(text);
  static constexpr std::pair<std::string_view, CharClass> kClasses[] = {
      {"isalpha", CharClass::alpha},          {"isdecimal", CharClass::decimal},
      {"isdigit", CharClass::digit},          {"isnumeric", CharClass::numeric},
      {"isalnum", CharClass::alphanumeric},   {"isspace", CharClass::space},
      {"isascii", CharClass::ascii},          {"isprintable", CharClass::printable},
      {"isidentifier", CharClass::identifier}};
  for (const auto& [known, kind] : kClasses)
    if (name == known) return all_are(text, kind);
  return false;
}

constexpr Method kOfStrings[] = {{"strip", strip_ends},
                                 {"lstrip", strip_ends},
                                 {"rstrip", strip_ends},
                                 {"split", split_text},
                                 {"rsplit", split_text},
                                 {"splitlines", split_into_lines},
                                 {"startswith", begins_or_ends},
                                 {"endswith", begins_or_ends},
                                 {"upper", change_case},
                                 {"lower", change_case},
                                 {"title", change_case},
                                 {"capitalize", change_case},
                                 {"casefold", change_case},
                                 {"swapcase", change_case},
                                 {"replace", replace_parts},
                                 {"removeprefix", without_end},
                                 {"removesuffix", without_end},
                                 {"find", find_text},
                                 {"rfind", find_text},
                                 {"index", find_text},
                                 {"rindex", find_text},
                                 {"count", find_text},
                                 {"join", join_texts},
                                 {"ljust", pad},
                                 {"rjust", pad},
                                 {"center", pad},
                                 {"zfill", fill_with_zeros},
                                 {"partition", partition},
                                 {"rpartition", partition},
                                 {"expandtabs", expand},
                                 {"format", format_text},
                                 {"format_map", format_text},
                                 {"isalpha", is_class},
                                 {"isdecimal", is_class},
                                 {"isdigit", is_class},
                                 {"isnumeric", is_class},
                                 {"isalnum", is_class},
                                 {"isspace", is_class},
                                 {"isascii", is_class},
                                 {"isprintable", is_class},
                                 {"isidentifier", is_class},
                                 {"isupper", is_class},
                                 {"islower", is_class},
                                 {"istitle", is_class}};

/// What a method of markup returns: its strings are markup, too.
Value as_markup(const Value& value) {
  if (value.is_string()) return Value::markup(value.text());
  if (!value.list()) return value;
  std::vector<Value> items = value.list()->items;
  for (Value& item : items) item = as_markup(item);
  return Value::list(std::move(items), value.list()->tuple);
}

Value view_of_dict(Work&, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {});
  return Value::view(name, value);
}

Value get_from_dict(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"/key", "/default"}, 1);
  work.spend(1);
  if (!given.places[0].is_hashable(work))
    user_error("{} cannot be the key of a dictionary", given.places[0].type_name());
  if (const Value* found = value.dict()->find(work, given.places[0])) return *found;
  return given.places.size() > 1 ? given.places[1] : Value();
}

Value copy_of(Work&, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {});
  return value;
}

Value changes(Work&, const Value& value, const std::string& name, const Given&) {
  user_error(
      "the method {} would change {}; values in a template are immutable: write an expression, or "
      "`set` with a namespace",
      name, value.type_name());
}

constexpr Method kOfDicts[] = {{"items", view_of_dict},  {"keys", view_of_dict},
                               {"values", view_of_dict}, {"get", get_from_dict},
                               {"copy", copy_of},        {"pop", changes},
                               {"update", changes},      {"setdefault", changes},
                               {"clear", changes},       {"popitem", changes}};

Value place_in_sequence(Work& work, const Value& value, const std::string& name,
                        const Given& given) {
  given.check(name, {"/value", "/start", "/stop"}, 1);
  if (name == "count" || value.range()) given.check(name, {"/value"}, 1);
  const int64_t length = *length_of(value);
  const auto place = [&](size_t i, int64_t otherwise) {
    const int64_t at = given.integer(i, "/start", otherwise);
    return at < 0 ? std::max<int64_t>(at + length, 0) : at;
  };
  const int64_t begin = place(1, 0), end = place(2, length);
  int64_t times = 0, i = 0;
  for (const Value& item : elements(work, value)) {
    const bool found = i >= begin && i < end && compare(work, "==", item, given.places[0]);
    if (found && name == "index") return i;
    times += found ? 1 : 0;
    ++i;
  }
  if (name == "index") user_error("index does not find the value");
  return times;
}

constexpr Method kOfLists[] = {{"index", place_in_sequence},
                               {"count", place_in_sequence},
                               {"copy", copy_of},
                               {"append", changes},
                               {"extend", changes},
                               {"insert", changes},
                               {"pop", changes},
                               {"remove", changes},
                               {"reverse", changes},
                               {"sort", changes},
                               {"clear", changes}};

constexpr Method kOfTuples[] = {{"index", place_in_sequence}, {"count", place_in_sequence}};

Value changed(Work& work, const Value& value, const std::string& name, const Given& given) {
  if (!given.names.empty()) user_error("loop.{} takes values without names", name);
  Loop& loop = *value.loop();
  Value now = Value::list(given.places, true);
  if (loop.last_changed && equal(work, *loop.last_changed, now)) return false;
  loop.last_changed = std::move(now);
  return true;
}

Value cycle(Work&, const Value& value, const std::string&, const Given& given) {
  if (given.places.empty() || !given.names.empty())
    user_error("loop.cycle takes one value or more");
  return given.places[static_cast<size_t>(value.loop()->index) % given.places.size()];
}

constexpr Method kOfLoops[] = {{"cycle", cycle}, {"changed", changed}};

const Method* find_method(const Value& value, std::string_view name) {
  const auto find = [name](const auto& methods) -> const Method* {
    for (const Method& method : methods)
      if (method.name == name) return &method;
    return nullptr;
  };
  if (value.is_string()) return find(kOfStrings);
  if (value.dict()) return find(kOfDicts);
  if (value.list()) return value.list()->tuple ? find(kOfTuples) : find(kOfLists);
  if (value.range()) return find(kOfTuples);
  return value.loop() ? find(kOfLoops) : nullptr;
}

}  // namespace

bool is_method(const Value& value, std::string_view name) {
  return find_method(value, name) != nullptr;
}

Value call_method(Work& work, const Value& value, const std::string& name, const Given& given) {
  if (const Method* method = find_method(value, name)) {
    Value result = method->call(work, value, name, given);
    return value.is_markup() ? as_markup(result) : result;
  }
  if (value.is_undefined()) user_error("{} is undefined", *value.as<Undefined>()->name);
  user_error("{} has no method '{}', or it is not supported", value.type_name(), name);
}

}  // namespace brrr::jinja
