#include "text/jinja/globals.h"

#include <algorithm>

namespace brrr::jinja {
namespace {

constexpr int64_t kLongestRange = 100'000;  // as Jinja's sandbox has it
constexpr std::string_view kFunctions[] = {"range", "namespace", "dict", "raise_exception",
                                           "strftime_now"};

Value range(Work& work, const Given& given) {
  given.check("range", {"/start", "/stop", "/step"}, 1);
  int64_t begin = 0, end = given.integer(0, "/start", 0);
  if (given.places.size() > 1) {
    begin = end;
    end = given.integer(1, "/stop", 0);
  }
  const int64_t step = given.integer(2, "/step", 1);
  if (step == 0) user_error("the step of range cannot be 0");
  Value value = Value::range(begin, end, step);
  const int64_t count = value.range()->count();
  if (count < 0 || count > kLongestRange)
    user_error("range has more than {} values", kLongestRange);
  work.spend(1);
  return value;
}

/// namespace() and dict(): from a dictionary or pairs, and from arguments with names.
Value name_values(Work& work, const std::string& what, const Given& given) {
  if (given.places.size() > 1) user_error("{} takes at most one value without a name", what);
  std::vector<std::pair<Value, Value>> items;
  if (!given.places.empty()) {
    if (const Dict* dict = given.places[0].dict()) {
      items = dict->items;
    } else {
      for (const Value& pair : elements(work, given.places[0])) {
        const std::vector<Value> both = elements(work, pair);
        if (both.size() != 2) user_error("{} takes pairs of a name and a value", what);
        items.emplace_back(both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : given.names) items.emplace_back(name, value);
  if (what == "dict") return Value::dict(work, std::move(items));
  work.spend(1 + items.size() * items.size() / 8);
  auto space = std::make_shared<Namespace>();
  for (auto& [name, value] : items) {
    if (!name.is_string() || name.text().starts_with('_'))
      user_error("the attributes of a namespace are names that do not begin with '_'");
    space->set(name.text(), std::move(value));
  }
  return Value(std::move(space));
}

Value date(Work& work, const std::string& format, const std::tm& now) {
  constexpr size_t kLongestFormat = 200;
  if (format.size() > kLongestFormat)
    user_error("the format of a date has more than {} bytes", kLongestFormat);
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') continue;
    ++i;
    if (i < format.size() && format[i] == '-') ++i;
    static constexpr std::string_view kKnown = "aAbBcdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%C";
    if (i >= format.size() || kKnown.find(format[i]) == std::string_view::npos)
      user_error("the format of a date has a directive that is not supported: '{}'", format);
  }
  if (format.empty()) return Value("");
  char text[1 << 14];
  const size_t size = std::strftime(text, sizeof text, format.c_str(), &now);
  return work.made(std::string(text, size));
}

}  // namespace

bool is_global(std::string_view name) {
  return std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions);
}

Value call_global(Work& work, const std::string& name, const Given& given, const std::tm& now) {
  if (name == "range") return range(work, given);
  if (name == "namespace" || name == "dict") return name_values(work, name, given);
  if (name == "raise_exception") {
    given.check(name, {"message"}, 1);
    throw Refusal(text_of(work, *given.find(0, "message")));
  }
  if (name == "strftime_now") {
    given.check(name, {"format"}, 1);
    return date(work, given.text(0, "format", ""), now);
  }
  user_error("'{}' is undefined, or not a supported function", name);
}

}  // namespace brrr::jinja
