#include <algorithm>
#include <cmath>
#include <optional>

#include "text/jinja/builtins.h"
#include "text/jinja/python_text.h"
#include "text/jinja/syntax.h"

namespace brrr::jinja {
namespace {

[[noreturn]] void no_operator(const std::string& op, const Value& a, const Value& b) {
  user_error("the operator {} takes no {} and {}", op, a.type_name(), b.type_name());
}

[[noreturn]] void too_large() { user_error("an integer has more than 64 bits"); }

int64_t floor_division(int64_t a, int64_t b) {
  if (b == -1) {
    if (a == INT64_MIN) too_large();
    return -a;
  }
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  for (; exponent > 0; --exponent)  // ends soon: the base is at least 2
    if (__builtin_mul_overflow(result, base, &result)) too_large();
  return result;
}

Value of_integers(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  if (op == "+") {
    overflows = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflows = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflows = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    if (b < 0) {
      if (a == 0) user_error("0 has no negative power");
      return std::pow(static_cast<double>(a), static_cast<double>(b));
    }
    result = integer_power(a, b);
  } else {
    if (b == 0) user_error("division by zero");
    if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
    result = op == "//" ? floor_division(a, b) : b == -1 ? 0 : a - floor_division(a, b) * b;
  }
  if (overflows) too_large();
  return result;
}

Value of_doubles(const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") {
    const double result = std::pow(a, b);
    if (std::isnan(result) && !std::isnan(a) && !std::isnan(b))
      user_error("the power is not a real number");
    return result;
  }
  if (b == 0) user_error("division by zero");
  if (op == "/") return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return op == "%" ? rest : std::floor((a - rest) / b + 0.5);
}

Value repeated(Work& work, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (value.is_string()) {
    const std::string& text = value.text();
    if (!text.empty() && times > static_cast<int64_t>(work.limits().output / text.size()))
      user_error("a text has more than {} bytes", work.limits().output);
    std::string out;
    if (!text.empty())
      for (; times > 0; --times) out += text;
    return work.made(std::move(out));
  }
  std::vector<Value> items;
  const std::vector<Value>& once = value.list()->items;
  for (; times > 0 && !once.empty(); --times) {
    work.spend(once.size());
    items.insert(items.end(), once.begin(), once.end());
  }
  return Value::list(std::move(items), value.list()->tuple);
}

bool contains(Work& work, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) user_error("{} cannot be in a string", item.type_name());
    work.spend_search(container.text(), item.text());
    return container.text().find(item.text()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    work.spend(1 + dict->items.size() / 8);
    return dict->find(item) != nullptr;
  }
  if (const List* list = container.list())
    return std::any_of(list->items.begin(), list->items.end(), [&](const Value& one) {
      work.spend(std::min(one.size().parts, item.size().parts));
      return equal(one, item);
    });
  if (container.is_undefined()) return false;
  user_error("{} has no elements", container.type_name());
}

/// A place of a slice as Python counts it, between `low` and `high`.
int64_t place_of(const Value* given, int64_t otherwise, int64_t count, int64_t low, int64_t high) {
  if (!given || given->is_none()) return otherwise;
  if (!given->is_integer()) user_error("{} cannot bound a slice", given->type_name());
  int64_t place = given->integer();
  if (place < 0) place += count;
  return std::clamp(place, low, high);
}

}  // namespace

Value binary(Work& work, const std::string& op, const Value& a, const Value& b) {
  if (a.is_undefined() || b.is_undefined()) {
    const Undefined* undefined = (a.is_undefined() ? a : b).as<Undefined>();
    user_error("{} is undefined", *undefined->name);
  }
  if (a.is_integer() && b.is_integer()) return of_integers(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return of_doubles(op, a.number(), b.number());
  if (op == "+") {
    if (a.is_string() && b.is_string()) {
      work.spend_text(a.text().size() + b.text().size());
      return Value(a.text() + b.text());
    }
    if (a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
      work.spend(a.list()->items.size() + b.list()->items.size());
      std::vector<Value> items = a.list()->items;
      items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
      return Value::list(std::move(items), a.list()->tuple);
    }
  }
  if (op == "*") {
    if ((a.is_string() || a.list()) && b.is_integer()) return repeated(work, a, b.integer());
    if ((b.is_string() || b.list()) && a.is_integer()) return repeated(work, b, a.integer());
  }
  no_operator(op, a, b);
}

bool compare(Work& work, const std::string& op, const Value& a, const Value& b) {
  if (op == "in") return contains(work, b, a);
  if (op == "not in") return !contains(work, b, a);
  work.spend(std::min(a.size().parts, b.size().parts));
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op == "<") return less(a, b);
  if (op == ">") return less(b, a);
  return op == "<=" ? less(a, b) || equal(a, b) : less(b, a) || equal(a, b);
}

std::string text_of(Work& work, const Value& value) {
  std::string text;
  append_text(value, false, work.limits().output, text);
  work.spend_text(text.size());
  return text;
}

std::vector<Value> elements(Work& work, const Value& value) {
  std::vector<Value> items;
  if (const List* list = value.list()) {
    work.spend(list->items.size());
    return list->items;
  }
  if (const Dict* dict = value.dict()) {
    work.spend(dict->items.size());
    for (const auto& item : dict->items) items.push_back(item.first);
    return items;
  }
  if (value.is_string()) {
    work.spend(value.text().size());
    for (const uint32_t code : code_points(value.text())) {
      std::string character;
      append_code_point(code, character);
      items.emplace_back(std::move(character));
    }
    return items;
  }
  if (value.is_undefined()) return items;
  user_error("{} has no elements", value.type_name());
}

Value slice(Work& work, const Value& value, const Value* from, const Value* to, const Value* step) {
  if (!value.is_string() && !value.list()) {
    if (value.is_undefined()) user_error("{} is undefined", *value.as<Undefined>()->name);
    user_error("{} has no slices", value.type_name());
  }
  const std::vector<Value> items = elements(work, value);
  const auto count = static_cast<int64_t>(items.size());
  int64_t by = 1;
  if (step && !step->is_none()) {
    if (!step->is_integer()) user_error("{} cannot be the step of a slice", step->type_name());
    by = std::clamp(step->integer(), -count - 1, count + 1);
    if (step->integer() == 0) user_error("the step of a slice cannot be 0");
  }
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? count : count - 1;
  const int64_t begin = place_of(from, by > 0 ? low : high, count, low, high);
  const int64_t end = place_of(to, by > 0 ? high : low, count, low, high);
  std::vector<Value> taken;
  for (int64_t i = begin; by > 0 ? i < end : i > end; i += by)
    taken.push_back(items[static_cast<size_t>(i)]);
  if (value.list()) return Value::list(std::move(taken), value.list()->tuple);
  std::string text;
  for (const Value& item : taken) text += item.text();
  return work.made(std::move(text));
}

namespace {

/// The attributes of the variable `loop`.
std::optional<Value> loop_attribute(const Loop& loop, const std::string& name) {
  const auto index = static_cast<int64_t>(loop.index),
             count = static_cast<int64_t>(loop.items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == count;
  if (name == "length") return count;
  if (name == "revindex") return count - index;
  if (name == "revindex0") return count - index - 1;
  if (name == "depth") return int64_t{1};
  if (name == "depth0") return int64_t{0};
  if (name == "previtem")
    return index > 0 ? loop.items[loop.index - 1] : Value::undefined("loop.previtem");
  if (name == "nextitem")
    return index + 1 < count ? loop.items[loop.index + 1] : Value::undefined("loop.nextitem");
  return std::nullopt;
}

std::optional<Value> found_item(Work& work, const Value& value, const Value& key) {
  if (const Dict* dict = value.dict()) {
    work.spend(1 + dict->items.size() / 8);
    if (const Value* found = dict->find(key)) return *found;
  } else if ((value.list() || value.is_string()) && key.is_integer()) {
    const int64_t count = value.list() ? static_cast<int64_t>(value.list()->items.size())
                                       : static_cast<int64_t>(count_characters(value.text()));
    int64_t index = key.integer();
    if (index < 0) index += count;
    if (index < 0 || index >= count) return std::nullopt;
    if (value.list()) return value.list()->items[static_cast<size_t>(index)];
    work.spend(1 + value.text().size() / 4);
    std::string character;
    append_code_point(code_points(value.text())[static_cast<size_t>(index)], character);
    return Value(std::move(character));
  }
  return std::nullopt;
}

std::optional<Value> found_attribute(const Value& value, const std::string& name) {
  if (const Loop* loop = value.loop()) return loop_attribute(*loop, name);
  if (const Namespace* space = value.space()) {
    if (const Value* found = space->find(name)) return *found;
    return std::nullopt;
  }
  if (const Macro* macro = value.macro(); macro && name == "name") return Value(macro->name);
  return is_method(value, name) ? std::optional<Value>(Function()) : std::nullopt;
}

void check_defined(const Value& value) {
  if (value.is_undefined()) user_error("{} is undefined", *value.as<Undefined>()->name);
}

}  // namespace

Value attribute_of(Work& work, const Value& value, const std::string& name) {
  check_defined(value);
  if (auto found = found_attribute(value, name)) return *found;
  if (auto found = found_item(work, value, Value(name))) return *found;
  return Value::undefined(fmt::format("the attribute '{}' of {}", name, value.type_name()));
}

Value item_of(Work& work, const Value& value, const Value& key) {
  check_defined(value);
  if (auto found = found_item(work, value, key)) return *found;
  if (key.is_string())
    if (auto found = found_attribute(value, key.text())) return *found;
  return Value::undefined(fmt::format("the item {} of {}",
                                      key.is_string()    ? "'" + key.text().substr(0, 100) + "'"
                                      : key.is_integer() ? std::to_string(key.integer())
                                                         : key.type_name(),
                                      value.type_name()));
}

const Value* Given::find(size_t place, std::string_view name) const {
  if (place < places.size()) return &places[place];
  for (const auto& [given, value] : names)
    if (given == name) return &value;
  return nullptr;
}

void Given::check(const std::string& what, const std::vector<std::string_view>& known,
                  size_t least) const {
  if (places.size() > known.size())
    user_error("{} takes at most {} arguments; got {}", what, known.size(), places.size());
  for (const auto& [name, value] : names) {
    const auto at = std::find(known.begin(), known.end(), name);
    if (at == known.end()) user_error("{} has no argument '{}'", what, name.substr(0, 100));
    if (static_cast<size_t>(at - known.begin()) < places.size())
      user_error("{} is given the argument '{}' twice", what, name);
  }
  for (size_t i = 0; i < least; ++i)
    if (!find(i, known[i])) user_error("{} needs the argument '{}'", what, known[i]);
}

int64_t Given::integer(size_t place, std::string_view name, int64_t otherwise) const {
  const Value* value = find(place, name);
  if (!value) return otherwise;
  if (!value->is_integer())
    user_error("expected an integer for '{}', found {}", name, value->type_name());
  return value->integer();
}

bool Given::flag(size_t place, std::string_view name, bool otherwise) const {
  const Value* value = find(place, name);
  return value ? value->truth() : otherwise;
}

std::string Given::text(size_t place, std::string_view name, const std::string& otherwise) const {
  const Value* value = find(place, name);
  if (!value) return otherwise;
  if (!value->is_string())
    user_error("expected a string for '{}', found {}", name, value->type_name());
  return value->text();
}

}  // namespace brrr::jinja
