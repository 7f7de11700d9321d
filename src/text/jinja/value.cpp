#include "text/jinja/value.h"

#include <algorithm>

#include "base/errors.h"
#include "text/jinja/python_numbers.h"

namespace brrr::jinja {
namespace {

/// Adds a value to the size of a container that holds it.
void add_part(const Value& value, Value::Size& size) {
  if (value.space() || value.loop() || value.macro() || value.function())
    user_error("{} cannot be put into a list, a dictionary or a namespace", value.type_name());
  const Value::Size part = value.size();
  size.depth = std::max(size.depth, part.depth + 1);
  size.parts += part.parts;
  if (size.depth > Value::kDeepest)
    user_error("a value is nested more than {} levels deep", Value::kDeepest);
  if (size.parts > Value::kMostParts)
    user_error("a value has more than {} parts", Value::kMostParts);
}

/// Steps charged for comparing `bytes` bytes of text: one per 64 bytes.
size_t steps_of_text(size_t bytes) { return 1 + bytes / 64; }

bool equal_items(Effort& effort, const std::vector<Value>& a, const std::vector<Value>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const Value& x, const Value& y) { return equal(effort, x, y); });
}

/// Views of keys and of items are equal as sets are.
bool equal_views(Effort& effort, const View& a, const View& b) {
  if (a.kind != b.kind || a.kind == View::Kind::values) return &a == &b;
  if (a.count() != b.count()) return false;
  return std::all_of(
      a.dict.dict()->items.begin(), a.dict.dict()->items.end(), [&](const auto& item) {
        const Value* other = b.dict.dict()->find(effort, item.first);
        return other && (a.kind == View::Kind::keys || equal(effort, item.second, *other));
      });
}

}  // namespace

Value Value::undefined(std::string name) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(name))};
  return value;
}

Value Value::list(std::vector<Value> items, bool tuple) {
  Size size{.depth = 1};
  for (const Value& item : items) add_part(item, size);
  Value value;
  value.data_ = std::make_shared<const List>(List{std::move(items), tuple, false, size});
  return value;
}

Value Value::markup(std::string text) {
  Value value;
  value.data_ = Markup{std::make_shared<const std::string>(std::move(text))};
  return value;
}

Value Value::group(Value grouper, Value list) {
  List group;
  group.items = {std::move(grouper), std::move(list)};
  group.tuple = group.group = true;
  group.size.depth = 1;
  for (const Value& item : group.items) add_part(item, group.size);
  Value value;
  value.data_ = std::make_shared<const List>(std::move(group));
  return value;
}

Value Value::range(int64_t start, int64_t stop, int64_t step) {
  Value value;
  value.data_ = std::make_shared<const Range>(Range{start, stop, step});
  return value;
}

Value Value::view(std::string_view what, Value dict) {
  const View::Kind kind = what == "keys"     ? View::Kind::keys
                          : what == "values" ? View::Kind::values
                                             : View::Kind::items;
  Value value;
  value.data_ = std::make_shared<const View>(View{kind, std::move(dict)});
  return value;
}

Value Value::iterator(Next next, const std::vector<Value>& held) {
  Iterator iterator{.next = std::move(next), .size = {.depth = 1}};
  for (const Value& one : held) add_part(one, iterator.size);
  Value value;
  value.data_ = std::make_shared<Iterator>(std::move(iterator));
  return value;
}

Value Value::dict(Effort& effort, std::vector<std::pair<Value, Value>> items) {
  Dict dict{.size = {.depth = 1}};
  for (auto& [key, value] : items) {
    if (!key.is_hashable(effort))
      user_error("{} cannot be the key of a dictionary", key.type_name());
    add_part(key, dict.size);
    add_part(value, dict.size);
    if (const Value* known = dict.find(effort, key))
      *const_cast<Value*>(known) = std::move(value);
    else
      dict.items.emplace_back(std::move(key), std::move(value));
  }
  Value value;
  value.data_ = std::make_shared<const Dict>(std::move(dict));
  return value;
}

Value Value::from_json(const nlohmann::ordered_json& json) {
  // Members are added without looking for their keys: JSON that was parsed has each once.
  const auto read = [](const auto& self, const nlohmann::ordered_json& j, int level) -> Value {
    if (level > kDeepest) user_error("a value is nested more than {} levels deep", kDeepest);
    switch (j.type()) {
      case nlohmann::ordered_json::value_t::boolean:
        return j.get<bool>();
      case nlohmann::ordered_json::value_t::number_unsigned:
        if (j.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
          user_error("the integer {} has more than 64 bits", j.get<uint64_t>());
        return static_cast<int64_t>(j.get<uint64_t>());
      case nlohmann::ordered_json::value_t::number_integer:
        return j.get<int64_t>();
      case nlohmann::ordered_json::value_t::number_float:
        return j.get<double>();
      case nlohmann::ordered_json::value_t::string:
        return j.get_ref<const std::string&>();
      case nlohmann::ordered_json::value_t::array: {
        std::vector<Value> items;
        for (const auto& item : j) items.push_back(self(self, item, level + 1));
        return list(std::move(items));
      }
      case nlohmann::ordered_json::value_t::object: {
        Dict dict{.size = {.depth = 1}};
        for (const auto& [key, item] : j.items()) {
          dict.items.emplace_back(key, self(self, item, level + 1));
          add_part(dict.items.back().second, dict.size);
        }
        Value value;
        value.data_ = std::make_shared<const Dict>(std::move(dict));
        return value;
      }
      default:
        return {};
    }
  };
  return read(read, json, 0);
}

const Macro* Value::macro() const {
  const auto* found = as<const Macro*>();
  return found ? *found : nullptr;
}

Value::Size Value::size() const {
  constexpr size_t kBytesOfPart = 64;  // of a string: what compares values also reads their texts
  if (is_string()) return {.parts = 1 + text().size() / kBytesOfPart};
  if (list()) return list()->size;
  if (dict()) return dict()->size;
  if (iterator()) return iterator()->size;
  if (!view()) return {};
  Size size = view()->dict.size();
  ++size.depth;
  return size;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_integer()) return integer() != 0;
  if (is_number()) return number() != 0;
  if (is_string()) return !text().empty();
  if (list()) return !list()->items.empty();
  if (dict()) return !dict()->items.empty();
  if (range()) return range()->count() > 0;
  if (view()) return view()->count() > 0;
  return true;
}

bool Value::is_hashable(Effort& effort) const {
  effort.spend(1);
  if (list())
    return list()->tuple &&
           std::all_of(list()->items.begin(), list()->items.end(),
                       [&](const Value& item) { return item.is_hashable(effort); });
  return is_string() || is_number() || is_none() || range();
}

const char* Value::type_name() const {
  if (is_undefined()) return "an undefined value";
  if (is_none()) return "none";
  if (is_bool()) return "a boolean";
  if (is_integer()) return "an integer";
  if (is_number()) return "a number";
  if (is_string()) return "a string";
  if (list()) return list()->tuple ? "a tuple" : "a list";
  if (dict()) return "a dictionary";
  if (range()) return "a range";
  if (view()) return "a view of a dictionary";
  if (iterator()) return "an iterator";
  if (space()) return "a namespace";
  if (loop()) return "the variable loop";
  return macro() ? "a macro" : "a function";
}

int64_t Range::count() const {
  const auto distance = static_cast<uint64_t>(stop) - static_cast<uint64_t>(start);
  if (step > 0)
    return start < stop ? static_cast<int64_t>((distance - 1) / static_cast<uint64_t>(step)) + 1
                        : 0;
  const uint64_t back = 0 - static_cast<uint64_t>(step);
  return start > stop ? static_cast<int64_t>((0 - distance - 1) / back) + 1 : 0;
}

bool Range::contains(Effort& effort, const Value& value) const {
  for (int64_t i = 0; value.is_number() && i < count(); ++i)
    if (equal(effort, at(i), value)) return true;
  return false;
}

int64_t View::count() const { return static_cast<int64_t>(dict.dict()->items.size()); }

Value View::at(int64_t index) const {
  const auto& [key, value] = dict.dict()->items[static_cast<size_t>(index)];
  return kind == Kind::keys ? key : kind == Kind::values ? value : Value::list({key, value}, true);
}

bool Loop::advance() {
  std::optional<Value> item;
  if (ahead.empty()) {
    item = next();
  } else {
    item = std::move(ahead.front());
    ahead.pop_front();
  }
  if (!item) return false;
  ++index;
  before = std::move(current);
  current = std::move(*item);
  return true;
}

int64_t Loop::length() {
  if (!total) {
    while (std::optional<Value> item = next()) ahead.push_back(std::move(*item));
    total = index + 1 + static_cast<int64_t>(ahead.size());
  }
  return *total;
}

const Value* Loop::peek() {
  if (ahead.empty())
    if (std::optional<Value> item = next()) ahead.push_back(std::move(*item));
  return ahead.empty() ? nullptr : &ahead.front();
}

const Value* Dict::find(Effort& effort, const Value& key) const {
  for (const auto& [name, value] : items)
    if (equal(effort, name, key)) return &value;
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items)
    if (name.is_string() && name.text() == key) return &value;
  return nullptr;
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [member, value] : members)
    if (member == name) return &value;
  return nullptr;
}

void Namespace::set(const std::string& name, Value value) {
  Value::Size size;
  add_part(value, size);
  for (auto& [member, old] : members)
    if (member == name) {
      old = std::move(value);
      return;
    }
  members.emplace_back(name, std::move(value));
}

bool equal(Effort& effort, const Value& a, const Value& b) {
  effort.spend(1);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
    if (a.is_integer()) return compare_exactly(a.integer(), b.number()) == 0;
    return b.is_integer() ? equal(effort, b, a) : a.number() == b.number();
  }
  if (a.is_string() && b.is_string()) {
    if (a.text().size() != b.text().size()) return false;
    effort.spend(steps_of_text(a.text().size()));
    return a.text() == b.text();
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.list() && b.list())
    return a.list()->tuple == b.list()->tuple &&
           (a.list() == b.list() || equal_items(effort, a.list()->items, b.list()->items));
  if (a.dict() && b.dict()) {
    if (a.dict() == b.dict()) return true;
    if (a.dict()->items.size() != b.dict()->items.size()) return false;
    return std::all_of(a.dict()->items.begin(), a.dict()->items.end(), [&](const auto& item) {
      const Value* other = b.dict()->find(effort, item.first);
      return other && equal(effort, item.second, *other);
    });
  }
  if (a.range() && b.range()) {
    const Range &x = *a.range(), &y = *b.range();
    return x.count() == y.count() &&
           (x.count() == 0 || (x.start == y.start && (x.count() == 1 || x.step == y.step)));
  }
  if (a.view() && b.view()) return equal_views(effort, *a.view(), *b.view());
  if (a.iterator() || b.iterator()) return a.iterator() == b.iterator();
  if (a.space() || b.space()) return a.space() == b.space();
  if (a.macro() || b.macro()) return a.macro() == b.macro();
  if (a.loop() || b.loop()) return a.loop() == b.loop();
  return a.function() && a.function() == b.function();
}

bool less(Effort& effort, const Value& a, const Value& b) {
  effort.spend(1);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() < b.integer();
    if (a.is_integer()) return compare_exactly(a.integer(), b.number()) < 0;
    if (b.is_integer()) return compare_exactly(b.integer(), a.number()) > 0;
    return a.number() < b.number();
  }
  // The order of code points is that of the bytes of UTF-8.
  if (a.is_string() && b.is_string()) {
    effort.spend(steps_of_text(std::min(a.text().size(), b.text().size())));
    return a.text() < b.text();
  }
  if (a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
    const std::vector<Value>&x = a.list()->items, &y = b.list()->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(effort, x[i], y[i])) return less(effort, x[i], y[i]);
    return x.size() < y.size();
  }
  user_error("{} and {} have no order", a.type_name(), b.type_name());
}

}  // namespace brrr::jinja
