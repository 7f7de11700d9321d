#include <algorithm>

#include "text/jinja/builtins.h"
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
  given.check(name, {"chars"});
  const Value* set = given.find(0, "chars");
  const bool has_set = set && !set->is_none();
  const std::string chars = has_set ? given.text(0, "chars", "") : "";
  work.spend_search(value.text(), chars);
  return work.made(std::string(
      strip(value.text(), has_set ? &chars : nullptr, name != "rstrip", name != "lstrip")));
}

Value split_text(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"sep", "maxsplit"});
  const Value* separator = given.find(0, "sep");
  std::string text;
  if (separator && !separator->is_none()) {
    text = given.text(0, "sep", "");
    if (text.empty()) user_error("{} needs a separator that is not empty", name);
  }
  work.spend_search(value.text(), text);
  return list_of(work,
                 split(value.text(), text, given.integer(1, "maxsplit", -1), name == "rsplit"));
}

Value split_into_lines(Work& work, const Value& value, const std::string& name,
                       const Given& given) {
  given.check(name, {});
  return list_of(work, split_lines(value.text()));
}

Value begins_or_ends(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"prefix"}, 1);
  const auto fits = [&](const Value& part) {
    if (!part.is_string()) user_error("{} takes a string or a tuple of strings", name);
    work.spend(1 + part.text().size() / 64);
    return name == "startswith" ? value.text().starts_with(part.text())
                                : value.text().ends_with(part.text());
  };
  const Value& part = *given.find(0, "prefix");
  if (!part.list()) return fits(part);
  return std::any_of(part.list()->items.begin(), part.list()->items.end(), fits);
}

Value change_case(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {});
  const std::string& text = value.text();
  work.spend_text(text.size());
  return work.made(name == "upper"   ? upper(text)
                   : name == "lower" ? lower(text)
                   : name == "title" ? title_of_words(text)
                                     : capitalize(text));
}

Value replace_parts(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"old", "new", "count"}, 2);
  return call_filter(work, "replace", value, given);
}

Value without_end(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"part"}, 1);
  const std::string part = given.text(0, "part", "");
  std::string_view text = value.text();
  if (name == "removeprefix" && text.starts_with(part)) text.remove_prefix(part.size());
  if (name == "removesuffix" && text.ends_with(part)) text.remove_suffix(part.size());
  return work.made(std::string(text));
}

Value find_text(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"sub"}, 1);
  const std::string part = given.text(0, "sub", "");
  const std::string& text = value.text();
  work.spend_search(text, part);
  if (name == "count") {
    if (part.empty()) return static_cast<int64_t>(count_characters(text) + 1);
    int64_t times = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++times;
    return times;
  }
  const size_t at = name == "rfind" ? text.rfind(part) : text.find(part);
  if (at != std::string::npos)
    return static_cast<int64_t>(count_characters(std::string_view(text).substr(0, at)));
  if (name == "index") user_error("index does not find the text");
  return int64_t{-1};
}

Value join_texts(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"items"}, 1);
  std::string out;
  bool first = true;
  for (const Value& item : elements(work, *given.find(0, "items"))) {
    if (!item.is_string()) user_error("join takes strings, found {}", item.type_name());
    if (!std::exchange(first, false)) out += value.text();
    out += item.text();
    work.spend_text(value.text().size() + item.text().size());
    if (out.size() > work.limits().output)
      user_error("a text has more than {} bytes", work.limits().output);
  }
  return Value(std::move(out));
}

Value is_class(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {});
  const std::string& text = value.text();
  work.spend_text(text.size());
  if (name == "isupper" || name == "islower") return all_cased(text, name == "isupper");
  return all_are(text, name == "isalpha"   ? CharClass::alpha
                       : name == "isalnum" ? CharClass::alphanumeric
                       : name == "isspace" ? CharClass::space
                                           : CharClass::digit);
}

constexpr Method kOfStrings[] = {{"strip", strip_ends},          {"lstrip", strip_ends},
                                 {"rstrip", strip_ends},         {"split", split_text},
                                 {"rsplit", split_text},         {"splitlines", split_into_lines},
                                 {"startswith", begins_or_ends}, {"endswith", begins_or_ends},
                                 {"upper", change_case},         {"lower", change_case},
                                 {"title", change_case},         {"capitalize", change_case},
                                 {"replace", replace_parts},     {"removeprefix", without_end},
                                 {"removesuffix", without_end},  {"find", find_text},
                                 {"rfind", find_text},           {"index", find_text},
                                 {"count", find_text},           {"join", join_texts},
                                 {"isalpha", is_class},          {"isdigit", is_class},
                                 {"isdecimal", is_class},        {"isalnum", is_class},
                                 {"isspace", is_class},          {"isupper", is_class},
                                 {"islower", is_class}};

Value parts_of_dict(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {});
  std::vector<Value> parts;
  work.spend(value.dict()->items.size());
  for (const auto& [key, item] : value.dict()->items)
    parts.push_back(name == "keys"     ? key
                    : name == "values" ? item
                                       : Value::list({key, item}, true));
  return Value::list(std::move(parts));
}

Value get_from_dict(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"key", "default"}, 1);
  work.spend(1 + value.dict()->items.size() / 8);
  if (const Value* found = value.dict()->find(*given.find(0, "key"))) return *found;
  const Value* otherwise = given.find(1, "default");
  return otherwise ? *otherwise : Value();
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

constexpr Method kOfDicts[] = {{"items", parts_of_dict},  {"keys", parts_of_dict},
                               {"values", parts_of_dict}, {"get", get_from_dict},
                               {"copy", copy_of},         {"pop", changes},
                               {"update", changes},       {"setdefault", changes},
                               {"clear", changes},        {"popitem", changes}};

Value place_in_list(Work& work, const Value& value, const std::string& name, const Given& given) {
  given.check(name, {"value"}, 1);
  int64_t times = 0;
  const std::vector<Value>& items = value.list()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!compare(work, "==", items[i], *given.find(0, "value"))) continue;
    if (name == "index") return static_cast<int64_t>(i);
    ++times;
  }
  if (name == "index") user_error("index does not find the value");
  return times;
}

constexpr Method kOfLists[] = {
    {"index", place_in_list}, {"count", place_in_list}, {"copy", copy_of}, {"append", changes},
    {"extend", changes},      {"insert", changes},      {"pop", changes},  {"remove", changes},
    {"reverse", changes},     {"sort", changes},        {"clear", changes}};

Value cycle(Work&, const Value& value, const std::string&, const Given& given) {
  if (given.places.empty() || !given.names.empty())
    user_error("loop.cycle takes one value or more");
  return given.places[value.loop()->index % given.places.size()];
}

constexpr Method kOfLoops[] = {{"cycle", cycle}};

const Method* find_method(const Value& value, std::string_view name) {
  const auto find = [name](const auto& methods) -> const Method* {
    for (const Method& method : methods)
      if (method.name == name) return &method;
    return nullptr;
  };
  if (value.is_string()) return find(kOfStrings);
  if (value.dict()) return find(kOfDicts);
  if (value.list()) return find(kOfLists);
  return value.loop() ? find(kOfLoops) : nullptr;
}

}  // namespace

bool is_method(const Value& value, std::string_view name) {
  return find_method(value, name) != nullptr;
}

Value call_method(Work& work, const Value& value, const std::string& name, const Given& given) {
  if (const Method* method = find_method(value, name))
    return method->call(work, value, name, given);
  if (value.is_undefined()) user_error("{} is undefined", *value.as<Undefined>()->name);
  user_error("{} has no method '{}', or it is not supported", value.type_name(), name);
}

}  // namespace brrr::jinja
