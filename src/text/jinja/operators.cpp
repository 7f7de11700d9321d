#include <algorithm>
#include <optional>

#include "text/jinja/builtins.h"
#include "text/jinja/python_format.h"
#include "text/jinja/python_numbers.h"
#include "text/jinja/python_text.h"

namespace brrr::jinja {
namespace {

[[noreturn]] void no_operator(const std::string& op, const Value& a, const Value& b) {
  user_error("the operator {} cannot be applied to {} and {}", op, a.type_name(), b.type_name());
}

[[noreturn]] void division_by_zero() { user_error("division by zero"); }

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
    if (b < 0) return real_power(static_cast<double>(a), static_cast<double>(b));
    result = integer_power(a, b);
  } else {
    if (b == 0) division_by_zero();
    // The quotient of integers that doubles do not hold is rounded once.
    if (op == "/")
      return static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b));
    result = op == "//" ? floor_divide(a, b) : floor_modulo(a, b);
  }
  if (overflows) refuse_large_integer();
  return result;
}

Value of_doubles(const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return real_power(a, b);
  if (b == 0) division_by_zero();
  if (op == "/") return a / b;
  return op == "%" ? floor_modulo(a, b) : floor_divide(a, b);
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
    return made_like(work, value, std::move(out));
  }
  std::vector<Value> items;
  const std::vector<Value>& once = value.list()->items;
  if (!once.empty() && times > static_cast<int64_t>(work.limits().work / once.size()))
    work.spend(SIZE_MAX);  // refused before it is made
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
    if (!item.is_hashable(work))
      user_error("{} cannot be the key of a dictionary", item.type_name());
    return dict->find(work, item) != nullptr;
  }
  if (const Range* range = container.range()) {
    return range->contains(work, item);
  }
  if (container.view() && container.view()->kind == View::Kind::keys)
    return contains(work, container.view()->dict, item);
  const Value::Next next = iterate(work, container);
  while (const std::optional<Value> one = next())
    if (equal(work, *one, item)) return true;
  return false;
}

/// A place of a slice as Python counts it, between `low` and `high`.
int64_t place_of(const Value* given, int64_t otherwise, int64_t count, int64_t low, int64_t high) {
  if (!given || given->is_none()) return otherwise;
  int64_t place = given->integer();
  if (place < 0) place += count;
  return std::clamp(place, low, high);
}

}  // namespace

Value binary(Work& work, const std::string& op, const Value& a, const Value& b) {
  if (op == "%" && a.is_string()) return format_percent(work, a, b);
  if (a.is_undefined() || b.is_undefined()) {
    const Undefined* undefined = (a.is_undefined() ? a : b).as<Undefined>();
    user_error("{} is undefined", *undefined->name);
  }
  if (a.is_integer() && b.is_integer()) return of_integers(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return of_doubles(op, a.number(), b.number());
  if (op == "+") {
    if (a.is_string() && b.is_string()) {
      work.spend_text(a.text().size() + b.text().size());
      if (a.is_markup() || b.is_markup()) return Value::markup(escaped(work, a) + escaped(work, b));
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
  if (op == "==") return equal(work, a, b);
  if (op == "!=") return !equal(work, a, b);
  if (op == "<") return less(work, a, b);
  if (op == ">") return less(work, b, a);
  return (op == "<=" ? less(work, a, b) : less(work, b, a)) || equal(work, a, b);
}

std::string text_of(Work& work, const Value& value) {
  std::string text;
  append_text(value, false, work.limits().output, text);
  work.spend_text(text.size());
  return text;
}

Value made_like(Work& work, const Value& like, std::string text) {
  work.spend_text(text.size());
  return like.is_markup() ? Value::markup(std::move(text)) : Value(std::move(text));
}

std::string escaped(Work& work, const Value& value) {
  if (value.is_markup()) return value.text();
  std::string out;
  for (const char c : text_of(work, value)) {
    static constexpr std::string_view kSpecial = "&<>\"'";
    static constexpr std::string_view kEntities[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    if (const size_t i = kSpecial.find(c); i != std::string_view::npos)
      out += kEntities[i];
    else
      out += c;
  }
  work.spend_text(out.size());
  return out;
}

std::optional<int64_t> length_of(const Value& value) {
  if (value.is_string()) return static_cast<int64_t>(count_characters(value.text()));
  if (value.list()) return std::ssize(value.list()->items);
  if (value.dict()) return std::ssize(value.dict()->items);
  if (value.range()) return value.range()->count();
  if (value.view()) return value.view()->count();
  if (value.loop()) return value.loop()->length();
  if (value.is_undefined()) return 0;
  return std::nullopt;
}

Value::Next iterate(Work& work, const Value& value) {
  if (value.iterator()) return [value] { return value.iterator()->next(); };
  /// The element at(i) for every i below `count`.
  const auto count_up = [&work](int64_t count, auto at) -> Value::Next {
    return [&work, count, at, i = int64_t{0}]() mutable -> std::optional<Value> {
      if (i >= count) return std::nullopt;
      work.spend(1);
      return at(i++);
    };
  };
  if (value.is_string()) {
    work.spend(1 + value.text().size() / 4);
    return count_up(*length_of(value), [codes = code_points(value.text())](int64_t i) {
      std::string character;
      append_code_point(codes[static_cast<size_t>(i)], character);
      return Value(std::move(character));
    });
  }
  if (value.list())
    return count_up(*length_of(value),
                    [value](int64_t i) { return value.list()->items[static_cast<size_t>(i)]; });
  if (value.dict())
    return count_up(*length_of(value), [value](int64_t i) {
      return value.dict()->items[static_cast<size_t>(i)].first;
    });
  if (value.range())
    return count_up(*length_of(value), [value](int64_t i) { return value.range()->at(i); });
  if (value.view())
    return count_up(*length_of(value), [value](int64_t i) { return value.view()->at(i); });
  if (value.is_undefined()) return [] { return std::nullopt; };
  user_error("{} has no elements", value.type_name());
}

std::vector<Value> elements(Work& work, const Value& value) {
  std::vector<Value> items;
  const Value::Next next = iterate(work, value);
  while (std::optional<Value> item = next()) {
    work.spend(1);
    items.push_back(std::move(*item));
  }
  return items;
}

Value slice(Work& work, const Value& value, const Value* from, const Value* to, const Value* step) {
  if (value.is_undefined()) user_error("{} is undefined", *value.as<Undefined>()->name);
  if (!value.is_string() && !value.list() && !value.range())
    user_error("{} has no slices", value.type_name());
  for (const Value* bound : {from, to, step})
    if (bound && !bound->is_none() && !bound->is_integer())
      user_error("{} cannot bound a slice", bound->type_name());
  const std::vector<Value> items = value.range() ? std::vector<Value>() : elements(work, value);
  const int64_t count = *length_of(value);
  int64_t by = 1;
  if (step && !step->is_none()) {
    by = std::clamp(step->integer(), -count - 1, count + 1);
    if (step->integer() == 0) user_error("the step of a slice cannot be 0");
  }
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? count : count - 1;
  const int64_t begin = place_of(from, by > 0 ? low : high, count, low, high);
  const int64_t end = place_of(to, by > 0 ? high : low, count, low, high);
  if (value.range()) {
    const Range& range = *value.range();
    return Value::range(range.start + begin * range.step, range.start + end * range.step,
                        range.step * by);
  }
  std::vector<Value> taken;
  for (int64_t i = begin; by > 0 ? i < end : i > end; i += by)
    taken.push_back(items[static_cast<size_t>(i)]);
  if (value.list()) return Value::list(std::move(taken), value.list()->tuple);
  std::string text;
  for (const Value& item : taken) text += item.text();
  return made_like(work, value, std::move(text));
}

}  // namespace brrr::jinja
