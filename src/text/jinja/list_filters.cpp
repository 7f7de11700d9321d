#include <algorithm>
#include <charconv>

#include "text/jinja/filters.h"
#include "text/jinja/python_text.h"

namespace brrr::jinja {

Value follow(Work& work, Value value, const Value& path, const Value* fallback) {
  const auto step = [&](const Value& key) {
    value = item_of(work, value, key);
    if (value.is_undefined() && fallback && !fallback->is_none()) value = *fallback;
  };
  if (path.is_none()) return value;
  if (!path.is_string()) {
    step(path);
    return value;
  }
  for (const std::string_view part : split(path.text(), ".", -1, false)) {
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = error == std::errc() && end == part.data() + part.size() && part[0] != '-';
    step(number ? Value(index) : Value(part));
  }
  return value;
}

Value without_case(Work& work, const Value& value, bool ignores) {
  return ignores && value.is_string() ? work.made(lower(value.text())) : value;
}

namespace {

/// The elements, each as `attribute` asks for.
std::vector<Value> elements_by(Work& work, const Value& input, const Value* attribute) {
  std::vector<Value> items = elements(work, input);
  if (attribute)
    for (Value& item : items) item = follow(work, item, *attribute);
  return items;
}

}  // namespace

std::vector<Value> sorted(Work& work, const std::vector<Value>& items,
                          const std::vector<Value>& keys, bool backwards) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return backwards ? less(work, keys[b], keys[a]) : less(work, keys[a], keys[b]);
  });
  std::vector<Value> out;
  for (const size_t i : order) out.push_back(items[i]);
  return out;
}

namespace {

Value first_or_last(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  if (name == "first") {
    const std::optional<Value> first = iterate(work, input)();
    return first ? *first : Value::undefined("the first element of what is empty");
  }
  if (!length_of(input) || input.loop())
    user_error("{} takes what can be read backwards, found {}; write `| list` before it", name,
               input.type_name());
  const std::vector<Value> items = elements(work, input);
  return items.empty() ? Value::undefined("the last element of what is empty") : items.back();
}

Value length(Work&, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  const std::optional<int64_t> count = length_of(input);
  if (!count) user_error("{} has no length", input.type_name());
  return *count;
}

Value to_list(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  return Value::list(elements(work, input));
}

Value join(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"d", "attribute"});
  const Value* between = given.find(0, "d");
  const std::string separator = between ? text_of(work, *between) : "";
  std::string out;
  bool first = true;
  for (const Value& item : elements_by(work, input, given.find_some(1, "attribute"))) {
    if (!std::exchange(first, false)) out += separator;
    out += text_of(work, item);
    work.spend_text(separator.size());
    if (out.size() > work.limits().output)
      user_error("a text has more than {} bytes", work.limits().output);
  }
  return Value(std::move(out));
}

Value sort(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = elements(work, input);
  const Value* attribute = given.find_some(2, "attribute");
  const bool ignores = !given.flag(1, "case_sensitive", false);
  std::vector<Value> keys;
  for (const Value& item : items) {
    // "age,name" sorts by the one, then by the other.
    std::vector<Value> parts;
    if (attribute && attribute->is_string())
      for (const std::string_view path : split(attribute->text(), ",", -1, false))
        parts.push_back(without_case(work, follow(work, item, Value(path)), ignores));
    else
      parts.push_back(
          without_case(work, attribute ? follow(work, item, *attribute) : item, ignores));
    keys.push_back(Value::list(std::move(parts)));
  }
  return Value::list(sorted(work, items, keys, given.flag(0, "reverse", false)));
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

Value extreme(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"case_sensitive", "attribute"});
  const std::vector<Value> items = elements(work, input);
  std::vector<Value> keys = items;
  if (const Value* attribute = given.find_some(1, "attribute"))
    for (Value& key : keys) key = follow(work, key, *attribute);
  if (items.empty()) return Value::undefined("the " + name + " of what is empty");
  size_t best = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    keys[i] = without_case(work, keys[i], !given.flag(0, "case_sensitive", false));
    if (i == 0) continue;  // a single value needs no order
    if (name == "min" ? less(work, keys[i], keys[best]) : less(work, keys[best], keys[i])) best = i;
  }
  return items[best];
}

Value sum(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"attribute", "start"});
  const Value* start = given.find(1, "start");
  Value total = start ? *start : Value(int64_t{0});
  if (total.is_string()) user_error("{} does not add strings; use join", name);
  for (const Value& item : elements_by(work, input, given.find_some(0, "attribute")))
    total = binary(work, "+", total, item);
  return total;
}

Value otherwise(Work&, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"default_value", "boolean"});
  if (!input.is_undefined() && !(given.flag(1, "boolean", false) && !input.truth())) return input;
  const Value* value = given.find(0, "default_value");
  return value ? *value : Value("");
}

Value attribute(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"name"}, 1);
  const std::string key = given.text(0, "name", "");
  // Only attributes: an item of that name does not count.
  const bool is_attribute =
      input.space() || input.loop() || input.macro() || input.range() || is_method(input, key);
  if (is_attribute || input.is_undefined()) return attribute_of(work, input, key);
  return Value::undefined(fmt::format("the attribute '{}' of {}", key, input.type_name()));
}

Value group_by(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"attribute", "default", "case_sensitive"}, 1);
  const Value* const path = given.find(0, "attribute");
  const Value* const fallback = given.find_some(1, "default");
  const bool ignores = !given.flag(2, "case_sensitive", false);
  const std::vector<Value> items = elements(work, input);
  const auto key_of = [&](const Value& item) {
    return without_case(work, follow(work, item, *path, fallback), ignores);
  };
  std::vector<Value> keys;
  for (const Value& item : items) keys.push_back(key_of(item));
  std::vector<Value> groups, members;
  Value key;
  const auto end_group = [&] {
    if (members.empty()) return;
    const Value grouper = ignores ? follow(work, members[0], *path, fallback) : key;
    groups.push_back(Value::group(grouper, Value::list(std::exchange(members, {}))));
  };
  for (const Value& item : sorted(work, items, keys, false)) {
    const Value next = key_of(item);
    if (members.empty() || !equal(work, key, next)) {
      end_group();
      key = next;
    }
    members.push_back(item);
  }
  end_group();
  return Value::list(std::move(groups));
}

constexpr Filter kListFilters[] = {{"first", first_or_last},
                                   {"last", first_or_last},
                                   {"length", length},
                                   {"count", length},
                                   {"list", to_list},
                                   {"join", join},
                                   {"sort", sort},
                                   {"dictsort", sort_dict},
                                   {"min", extreme},
                                   {"max", extreme},
                                   {"sum", sum},
                                   {"default", otherwise},
                                   {"d", otherwise},
                                   {"attr", attribute},
                                   {"groupby", group_by}};

}  // namespace

std::span<const Filter> list_filters() { return kListFilters; }

}  // namespace brrr::jinja
