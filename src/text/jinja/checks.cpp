#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/python_text.h"

namespace brrr::jinja {
namespace {

bool is_multiple(const Value& value, const Value& of) {
  if (!value.is_integer() || !of.is_integer() || of.integer() == 0)
    user_error("divisibleby takes integers, and not 0");
  return of.integer() == -1 || value.integer() % of.integer() == 0;
}

double rest_of_half(const Value& value) {
  if (!value.is_number()) user_error("odd and even take a number, found {}", value.type_name());
  return std::fmod(value.number(), 2);
}

bool all_of_case(const Value& value, bool upper) {
  return value.is_string() && all_cased(value.text(), upper);
}

using Test = bool (*)(const Value& value);

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"string", [](const Value& v) { return v.is_string(); }},
    {"mapping", [](const Value& v) { return v.dict() != nullptr; }},
    {"iterable",
     [](const Value& v) { return v.is_string() || v.list() || v.dict() || v.is_undefined(); }},
    {"sequence",
     [](const Value& v) { return v.is_string() || v.list() || v.dict() || v.is_undefined(); }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"integer", [](const Value& v) { return v.is_integer() && !v.is_bool(); }},
    {"float", [](const Value& v) { return v.is_number() && !v.is_integer(); }},
    {"boolean", [](const Value& v) { return v.is_bool(); }},
    {"true", [](const Value& v) { return v.is_bool() && v.integer() == 1; }},
    {"false", [](const Value& v) { return v.is_bool() && v.integer() == 0; }},
    {"callable",
     [](const Value& v) { return v.macro() || v.as<Function>() || v.loop() || v.is_undefined(); }},
    {"lower", [](const Value& v) { return all_of_case(v, false); }},
    {"upper", [](const Value& v) { return all_of_case(v, true); }},
    {"odd", [](const Value& v) { return rest_of_half(v) != 0; }},
    {"even", [](const Value& v) { return rest_of_half(v) == 0; }},
    {"filter", [](const Value& v) { return v.is_string() && is_filter(v.text()); }},
    {"test", [](const Value& v) { return v.is_string() && is_test(v.text()); }}};

constexpr std::pair<std::string_view, const char*> kComparisons[] = {
    {"equalto", "=="},    {"eq", "=="},      {"==", "=="}, {"ne", "!="}, {"!=", "!="}, {"lt", "<"},
    {"<", "<"},           {"lessthan", "<"}, {"le", "<="}, {"<=", "<="}, {"gt", ">"},  {">", ">"},
    {"greaterthan", ">"}, {"ge", ">="},      {">=", ">="}, {"in", "in"}};

bool same(const Value& a, const Value& b) {
  if (a.list() || b.list()) return a.list() == b.list();
  if (a.dict() || b.dict()) return a.dict() == b.dict();
  return a.is_bool() == b.is_bool() && a.is_integer() == b.is_integer() && equal(a, b);
}

}  // namespace

bool is_test(std::string_view name) {
  const auto is_it = [&](const auto& test) { return test.first == name; };
  return name == "divisibleby" || name == "sameas" ||
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
  if (name == "divisibleby") {
    given.check(name, {"num"}, 1);
    return is_multiple(value, *given.find(0, "num"));
  }
  if (name == "sameas") {
    given.check(name, {"other"}, 1);
    return same(value, *given.find(0, "other"));
  }
  user_error("the test '{}' is not supported", name.substr(0, 100));
}

}  // namespace brrr::jinja
