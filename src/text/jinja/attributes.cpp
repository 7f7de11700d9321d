#include <algorithm>
#include <optional>

#include "text/jinja/builtins.h"
#include "text/jinja/python_text.h"
#include "text/jinja/syntax.h"

// Attributes and items of values, and the arguments of calls.

namespace brrr::jinja {
namespace {

/// The attributes of the variable `loop`.
std::optional<Value> loop_attribute(Loop& loop, const std::string& name) {
  if (name == "index") return loop.index + 1;
  if (name == "index0") return loop.index;
  if (name == "first") return loop.index == 0;
  if (name == "last") return loop.peek() == nullptr;
  if (name == "length") return loop.length();
  if (name == "revindex") return loop.length() - loop.index;
  if (name == "revindex0") return loop.length() - loop.index - 1;
  if (name == "depth") return loop.depth;
  if (name == "depth0") return loop.depth - 1;
  if (name == "previtem") return loop.index > 0 ? loop.before : Value::undefined("loop.previtem");
  if (name == "nextitem") {
    const Value* next = loop.peek();
    return next ? *next : Value::undefined("loop.nextitem");
  }
  return std::nullopt;
}

Value strings_of(const std::vector<std::string>& texts) {
  std::vector<Value> items;
  for (const std::string& text : texts) items.emplace_back(text);
  return Value::list(std::move(items), true);
}

std::optional<Value> macro_attribute(const Macro& macro, std::string_view name) {
  if (name == "name") return Value(macro.name);
  if (name == "arguments") return strings_of(macro.parameters);
  if (name == "caller") return macro.uses_caller;
  if (name == "catch_varargs") return macro.uses_varargs;
  if (name == "catch_kwargs") return macro.uses_kwargs;
  return std::nullopt;
}

std::optional<Value> found_item(Work& work, const Value& value, const Value& key) {
  if (const Dict* dict = value.dict()) {
    work.spend(1);
    if (!key.is_hashable(work)) return std::nullopt;
    if (const Value* found = dict->find(work, key)) return *found;
  } else if ((value.list() || value.is_string() || value.range()) && key.is_integer()) {
    const int64_t count = *length_of(value);
    int64_t index = key.integer();
    if (index < 0) index += count;
    if (index < 0 || index >= count) return std::nullopt;
    if (value.list()) return value.list()->items[static_cast<size_t>(index)];
    if (value.range()) return value.range()->at(index);
    work.spend(1 + value.text().size() / 4);
    std::string character;
    append_code_point(code_points(value.text())[static_cast<size_t>(index)], character);
    return made_like(work, value, std::move(character));
  } else if (const Namespace* space = value.space(); space && key.is_string()) {
    if (const Value* found = space->find(key.text())) return *found;
  }
  return std::nullopt;
}

std::optional<Value> found_attribute(const Value& value, const std::string& name) {
  if (name.starts_with('_')) return std::nullopt;
  if (Loop* loop = value.loop())
    if (auto found = loop_attribute(*loop, name)) return found;
  if (const Namespace* space = value.space())
    if (const Value* found = space->find(name)) return *found;
  if (const Macro* macro = value.macro()) return macro_attribute(*macro, name);
  if (const Range* range = value.range()) {
    if (name == "start") return range->start;
    if (name == "stop") return range->stop;
    if (name == "step") return range->step;
  }
  if (const List* list = value.list(); list && list->group) {
    if (name == "grouper") return list->items[0];
    if (name == "list") return list->items[1];
  }
  if (!is_method(value, name)) return std::nullopt;
  return Value(std::make_shared<const Function>(Function{name, value}));
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

const Value* Given::find_some(size_t place, std::string_view name) const {
  const Value* found = find(place, name);
  return found && !found->is_none() ? found : nullptr;
}

void Given::check(const std::string& what, const std::vector<std::string_view>& known,
                  size_t least) const {
  if (places.size() > known.size())
    user_error("{} takes at most {} arguments; got {}", what, known.size(), places.size());
  for (const auto& [name, value] : names) {
    if (name.starts_with('/')) user_error("{} has no argument '{}'", what, name.substr(0, 100));
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
