#include <algorithm>

#include "text/jinja/filters.h"
#include "text/jinja/python_text.h"

// The filters that return iterators: nothing of their work is done before an element is asked for,
// errors included, and an iterator is read once, as in Python.

namespace brrr::jinja {
namespace {

/// All that an iterator refers to, for its measure.
std::vector<Value> held(const Value& input, const Given& given) {
  std::vector<Value> all = given.places;
  all.push_back(input);
  for (const auto& [name, value] : given.names) all.push_back(value);
  return all;
}

/// An iterator whose elements are those of `begin()`, which is called at the first.
template <typename Begin>
Value lazy(std::vector<Value> held, Begin begin) {
  return Value::iterator(
      [begin, next = Value::Next()]() mutable -> std::optional<Value> {
        if (!next) next = begin();
        return next();
      },
      held);
}

Value::Next nothing() {
  return []() -> std::optional<Value> { return std::nullopt; };
}

Value reverse(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  std::vector<Value> items = elements(work, input);
  std::reverse(items.begin(), items.end());
  if (input.is_string()) {
    std::string out;
    for (const Value& item : items) out += item.text();
    return made_like(work, input, std::move(out));
  }
  if (input.iterator() || input.is_undefined()) return Value::list(std::move(items));
  const Value list = Value::list(std::move(items));
  return lazy({list}, [&work, list] { return iterate(work, list); });
}

Value items_of(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  return lazy({input}, [&work, input, name] {
    if (input.is_undefined()) return nothing();
    if (!input.dict()) user_error("{} takes a dictionary, found {}", name, input.type_name());
    return iterate(work, Value::view("items", input));
  });
}

/// The arguments behind the first `count`, for another filter or test.
Given rest_of(const Given& given, size_t count) {
  Given rest = given;
  rest.places.erase(rest.places.begin(), rest.places.begin() + static_cast<int64_t>(count));
  return rest;
}

Value map(Work& work, const std::string& name, const Value& input, const Given& given) {
  return lazy(held(input, given), [&work, name, input, given]() -> Value::Next {
    if (!input.truth()) return nothing();
    const Value::Next next = iterate(work, input);
    if (!given.places.empty()) {
      const std::string filter = given.text(0, "", "");
      return [&work, next, filter, rest = rest_of(given, 1)]() -> std::optional<Value> {
        std::optional<Value> item = next();
        return item ? call_filter(work, filter, *item, rest) : item;
      };
    }
    const Value* const path = given.find(0, "attribute");
    if (!path) user_error("{} needs a filter, or the argument 'attribute'", name);
    given.check(name, {"attribute", "default"});
    return [&work, next, given]() -> std::optional<Value> {
      std::optional<Value> item = next();
      return item ? follow(work, *item, *given.find(0, "attribute"), given.find(1, "default"))
                  : item;
    };
  });
}

/// select, reject, selectattr and rejectattr: the elements for which a test holds, or does not.
Value choose(Work& work, const std::string& name, const Value& input, const Given& given) {
  return lazy(held(input, given), [&work, name, input, given]() -> Value::Next {
    if (!input.truth()) return nothing();
    const bool by_attribute = name.ends_with("attr"), wanted = name.starts_with("select");
    const size_t taken = by_attribute ? 1 : 0;
    if (given.places.size() < taken) user_error("{} needs the name of an attribute", name);
    const bool has_test = given.places.size() > taken;
    const std::string test = has_test ? given.text(taken, "", "") : "";
    return [&work, by_attribute, wanted, has_test, test, given, next = iterate(work, input),
            rest = has_test ? rest_of(given, taken + 1) : Given()]() -> std::optional<Value> {
      while (std::optional<Value> item = next()) {
        const Value value = by_attribute ? follow(work, *item, given.places[0]) : *item;
        if ((has_test ? call_test(work, test, value, rest) : value.truth()) == wanted) return item;
      }
      return std::nullopt;
    };
  });
}

Value unique(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"case_sensitive", "attribute"});
  return lazy(held(input, given), [&work, input, given]() -> Value::Next {
    return [&work, given, next = iterate(work, input),
            seen = std::vector<Value>()]() mutable -> std::optional<Value> {
      const bool ignores = !given.flag(0, "case_sensitive", false);
      const Value* const path = given.find_some(1, "attribute");
      while (std::optional<Value> item = next()) {
        const Value key = without_case(work, path ? follow(work, *item, *path) : *item, ignores);
        if (!key.is_hashable(work) && !key.is_undefined())
          user_error("unique cannot compare {}", key.type_name());
        const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
          work.spend(1);
          return equal(work, key, other);
        });
        if (known) continue;
        seen.push_back(key);
        return item;
      }
      return std::nullopt;
    };
  });
}

Value batch(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"linecount", "fill_with"}, 1);
  const Value* const fill = given.find_some(1, "fill_with");
  const int64_t count = given.integer(0, "linecount", 1);
  return lazy(held(input, given),
              [&work, input, count, filler = fill ? std::optional(*fill) : std::nullopt] {
                return [&work, count, filler, next = iterate(work, input),
                        part = std::vector<Value>()]() mutable -> std::optional<Value> {
                  while (std::optional<Value> item = next()) {
                    const bool full = std::ssize(part) == count;
                    std::vector<Value> done = full ? std::exchange(part, {}) : std::vector<Value>();
                    part.push_back(std::move(*item));
                    if (full) return Value::list(std::move(done));
                  }
                  if (part.empty()) return std::nullopt;
                  for (; filler && std::ssize(part) < count; part.push_back(*filler)) work.spend(1);
                  return Value::list(std::exchange(part, {}));
                };
              });
}

/// `slices` lists of about the same length; the first take what is over.
Value slices_of(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"slices", "fill_with"}, 1);
  const Value* const fill = given.find_some(1, "fill_with");
  const int64_t slices = given.integer(0, "slices", 1);
  return lazy(held(input, given),
              [&work, input, slices, filler = fill ? std::optional(*fill) : std::nullopt] {
                const std::vector<Value> all = elements(work, input);
                if (slices == 0) user_error("slice takes a number of slices other than 0");
                const int64_t each = slices > 0 ? std::ssize(all) / slices : 0;
                const int64_t over = slices > 0 ? std::ssize(all) % slices : 0;
                return [&work, all, slices, each, over, filler,
                        number = int64_t{0}]() mutable -> std::optional<Value> {
                  if (number >= slices) return std::nullopt;
                  work.spend(16);  // a list, though it may be empty
                  const int64_t begin = number * each + std::min(number, over);
                  const int64_t size = each + (number < over ? 1 : 0);
                  std::vector<Value> part(all.begin() + begin, all.begin() + begin + size);
                  if (filler && number >= over) part.push_back(*filler);
                  ++number;
                  return Value::list(std::move(part));
                };
              });
}

constexpr Filter kIteratingFilters[] = {
    {"reverse", reverse}, {"items", items_of},    {"map", map},           {"select", choose},
    {"reject", choose},   {"selectattr", choose}, {"rejectattr", choose}, {"unique", unique},
    {"batch", batch},     {"slice", slices_of}};

}  // namespace

std::span<const Filter> iterating_filters() { return kIteratingFilters; }

namespace {

const Filter* find_filter(std::string_view name) {
  for (const auto& table : {text_filters(), number_filters(), list_filters(), iterating_filters()})
    for (const Filter& filter : table)
      if (filter.name == name) return &filter;
  return nullptr;
}

}  // namespace

bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }

Value call_filter(Work& work, const std::string& name, const Value& input, const Given& given) {
  work.spend(1);
  if (const Filter* filter = find_filter(name)) return filter->call(work, name, input, given);
  user_error("the filter '{}' is not supported", name.substr(0, 100));
}

}  // namespace brrr::jinja
