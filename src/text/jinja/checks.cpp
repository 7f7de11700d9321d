#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/python_text.h"

namespace brrr::jinja {
namespace {

bool rest_is(Work& work, const Value& value, const Value& of, int64_t rest) {
  return equal(work, binary(work, "%", value, of), Value(rest));
}

bool all_of_case(const Value& value, bool upper) { return all_cased(to_text(value), upper); }

/// Looking a value up among names takes one that has a hash.
bool is_named(Work& work, const Value& value) {
  if ((value.list() || value.dict()) && !value.is_hashable(work))
    user_error("{} cannot be a name", value.type_name());
  return value.is_string();
}

using Test = bool (*)(const Value& value);

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"string", [](const Value& v) { return v.is_string(); }},
    {"mapping", [](const Value& v) { return v.dict() != nullptr; }},
    {"iterable",
     [](const Value& v) { return length_of(v).has_value() || v.iterator() != nullptr; }},
    {"sequence",
     [](const Value& v) {
       return v.is_string() || v.list() || v.dict() || v.range() || v.is_undefined();
     }},
    {"escaped", [](const Value& v) { return v.is_markup(); }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"integer", [](const Value& v) { return v.is_integer() && !v.is_bool(); }},
    {"float", [](const Value& v) { return v.is_number() && !v.is_integer(); }},
    {"boolean", [](const Value& v) { return v.is_bool(); }},
    {"true", [](const Value& v) { return v.is_bool() && v.integer() == 1; }},
    {"false", [](const Value& v) { return v.is_bool() && v.integer() == 0; }},
    {"callable",
     [](const Value& v) { return v.macro() || v.function() || v.loop() || v.is_undefined(); }},
    {"lower", [](const Value& v) { return all_of_case(v, false); }},
    {"upper", [](const Value& v) { return all_of_case(v, true); }}};

constexpr std::pair<std::string_view, const char*> kComparisons[] = {
    {"equalto", "=="},    {"eq", "=="},      {"==", "=="}, {"ne", "!="}, {"!=", "!="}, {"lt", "<"},
    {"<", "<"},           {"lessthan", "<"}, {"le", "<="}, {"<=", "<="}, {"gt", ">"},  {">", ">"},
    {"greaterthan", ">"}, {"ge", ">="},      {">=", ">="}, {"in", "in"}};

bool same(Work& work, const Value& a, const Value& b) {
  if (a.list() || b.list()) return a.list() == b.list();
  if (a.dict() || b.dict()) return a.dict() == b.dict();
  return a.is_bool() == b.is_bool() && a.is_integer() == b.is_integer() && equal(work, a, b);
}

}  // namespace

bool is_test(std::string_view name) {
  const auto is_it = [&](const auto& test) { return test.first == name; };
  return name == "divisibleby" || name == "sameas" || name == "odd" || name == "even" ||
         name == "filter" || name == "test" ||
         std::any_of(std::begin(kTests), std::end(kTests), is_it) ||
         std::any_of(std::begin(kComparisons), std::end(kComparisons), is_it);
}

bool call_test(Work& work, const std::string& name, const Value& value, const Given& given) {
  work.spend(1);
  for (const auto& [known, test] : kTests)
    if (known == name) {
      given.check(name, {});
      if (value.is_string()) work.spend_text(value.text().size());
      return test(value);
    }
  for (const auto& [known, op] : kComparisons)
    if (known == name) {
      given.check(name, {"other"}, 1);
      return compare(work, op, value, *given.find(0, "other"));
    }
  if (name == "filter" || name == "test") {
    given.check(name, {});
    return is_named(work, value) &&
           (name == "filter" ? is_filter(value.text()) : is_test(value.text()));
  }
  if (name == "odd" || name == "even") {
    given.check(name, {});
    return rest_is(work, value, Value(int64_t{2}), name == "odd" ? 1 : 0);
  }
  if (name == "divisibleby") {
    given.check(name, {"num"}, 1);
    return rest_is(work, value, *given.find(0, "num"), 0);
  }
  if (name == "sameas") {
    given.check(name, {"other"}, 1);
    return same(work, value, *given.find(0, "other"));
  }
  user_error("the test '{}' is not supported", name.substr(0, 100));
}

}  // namespace brrr::jinja
