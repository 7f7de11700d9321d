#pragma once
// The values of a template, as Python has them: none, booleans, integers of 64 bits, doubles,
// strings of UTF-8, lists, tuples, dictionaries in the order of insertion, their views, ranges and
// one-shot iterators. Containers do not change once they are made, so values never form a cycle;
// namespaces, macros, functions and the variable `loop` cannot be put into containers.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace brrr::jinja {

struct List;
struct Dict;
struct Range;
struct View;
struct Iterator;
struct Namespace;
struct Loop;
struct Macro;
struct Function;
struct Stmt;
class Scope;

/// Counts the steps of what can take long on large values.
class Effort {
 public:
  virtual ~Effort() = default;
  /// Throws UserError once the limit is reached.
  virtual void spend(size_t steps) = 0;
};

/// A name that leads to nothing: it prints as "", and most of what is done with it is an error.
struct Undefined {
  std::shared_ptr<const std::string> name;
};
struct None {};
/// A string that the filters `safe` and `escape` made: what is added to it is escaped for HTML.
struct Markup {
  std::shared_ptr<const std::string> text;
};

class Value {
 public:
  /// Containers inside one another, and values in all of them together, beyond which a value is
  /// refused. A value that is shared counts as often as it is seen.
  static constexpr int kDeepest = 100;
  static constexpr size_t kMostParts = size_t{1} << 22;
  using Text = std::shared_ptr<const std::string>;
  /// The next element of an iteration; nothing at its end.
  using Next = std::function<std::optional<Value>()>;

  Value() : data_(None{}) {}
  Value(bool value) : data_(value) {}     // NOLINT: literals read best this way
  Value(int64_t value) : data_(value) {}  // NOLINT
  Value(double value) : data_(value) {}   // NOLINT
  Value(std::string text)                 // NOLINT
      : data_(std::make_shared<const std::string>(std::move(text))) {}
  Value(std::string_view text) : Value(std::string(text)) {}                       // NOLINT
  Value(const char* text) : Value(std::string(text)) {}                            // NOLINT
  Value(std::shared_ptr<const Function> function) : data_(std::move(function)) {}  // NOLINT
  Value(std::shared_ptr<Namespace> space) : data_(std::move(space)) {}             // NOLINT
  Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}                    // NOLINT
  Value(const Macro* macro) : data_(macro) {}                                      // NOLINT
  static Value undefined(std::string name);
  static Value markup(std::string text);
  /// Throws UserError for values beyond the limits and for what containers do not hold.
  static Value list(std::vector<Value> items, bool tuple = false);
  /// A tuple whose parts are also the attributes `grouper` and `list`.
  static Value group(Value grouper, Value list);
  /// The last of equal keys counts, at the place of the first.
  static Value dict(Effort& effort, std::vector<std::pair<Value, Value>> items);
  static Value range(int64_t start, int64_t stop, int64_t step);
  /// `dict` is a dictionary; `what` is "keys", "values" or "items".
  static Value view(std::string_view what, Value dict);
  /// An iterator that a filter returns. `held` is all that `next` refers to: it is checked as the
  /// parts of a container are.
  static Value iterator(Next next, const std::vector<Value>& held);
  /// Throws UserError for values beyond the limits and for integers beyond 64 bits.
  static Value from_json(const nlohmann::ordered_json& json);

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  bool is_bool() const { return as<bool>() != nullptr; }
  /// A boolean is an integer, too.
  bool is_integer() const { return as<int64_t>() != nullptr || is_bool(); }
  bool is_number() const { return is_integer() || as<double>() != nullptr; }
  /// Markup is a string, too.
  bool is_string() const { return as<Text>() != nullptr || is_markup(); }
  bool is_markup() const { return as<Markup>() != nullptr; }
  /// A list or a tuple.
  const List* list() const { return pointer<std::shared_ptr<const List>>(); }
  const Dict* dict() const { return pointer<std::shared_ptr<const Dict>>(); }
  const Range* range() const { return pointer<std::shared_ptr<const Range>>(); }
  const View* view() const { return pointer<std::shared_ptr<const View>>(); }
  Iterator* iterator() const { return pointer<std::shared_ptr<Iterator>>(); }
  Namespace* space() const { return pointer<std::shared_ptr<Namespace>>(); }
  Loop* loop() const { return pointer<std::shared_ptr<Loop>>(); }
  const Function* function() const { return pointer<std::shared_ptr<const Function>>(); }
  const Macro* macro() const;
  /// Only what the questions above allow.
  const std::string& text() const { return is_markup() ? *as<Markup>()->text : **as<Text>(); }
  int64_t integer() const { return is_bool() ? (*as<bool>() ? 1 : 0) : *as<int64_t>(); }
  double number() const { return is_integer() ? static_cast<double>(integer()) : *as<double>(); }

  bool truth() const;
  /// Whether it may be the key of a dictionary, as Python's hash() has it.
  bool is_hashable(Effort& effort) const;
  /// "a string", "an integer": for errors.
  const char* type_name() const;
  /// What a value is in measure: itself, or itself and all that it holds.
  struct Size {
    int depth = 0;
    size_t parts = 1;
  };
  Size size() const;

 private:
  template <typename T>
  auto pointer() const -> decltype(as<T>()->get()) {
    const T* found = as<T>();
    return found ? found->get() : nullptr;
  }

  std::variant<Undefined, None, bool, int64_t, double, Text, Markup, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<const Range>,
               std::shared_ptr<const View>, std::shared_ptr<Iterator>, std::shared_ptr<Namespace>,
               std::shared_ptr<Loop>, const Macro*, std::shared_ptr<const Function>>
      data_;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  bool group = false;  // what the filter groupby returns
  Value::Size size;
};

struct Dict {
  std::vector<std::pair<Value, Value>> items = {};
  Value::Size size;
  /// Null where there is none.
  const Value* find(Effort& effort, const Value& key) const;
  const Value* find(std::string_view key) const;
};

/// What `range()` returns.
struct Range {
  int64_t start = 0, stop = 0, step = 1;
  int64_t count() const;
  Value at(int64_t index) const { return start + index * step; }
  bool contains(Effort& effort, const Value& value) const;
};

/// What keys(), values() and items() of a dictionary return.
struct View {
  enum class Kind { keys, values, items } kind = Kind::keys;
  Value dict;
  int64_t count() const;
  Value at(int64_t index) const;
};

/// What `map`, `select`, `reverse` and the like return: it is consumed as it is read.
struct Iterator {
  Value::Next next;
  Value::Size size;
};

/// What `namespace()` makes: attributes that `set` changes.
struct Namespace {
  std::vector<std::pair<std::string, Value>> members;
  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};

/// A method of a value, or a global function, that is mentioned without being called.
struct Function {
  std::string name;
  std::optional<Value> self = {};  // nothing for a global function
};

/// The variable `loop`.
struct Loop {
  Value::Next next;
  std::optional<int64_t> total = {};  // the number of elements, once it is known
  int64_t depth = 1;
  const Stmt* recursive = nullptr;  // the statement, where it may be called
  Scope* home = nullptr;            // where the statement stands

  int64_t index = -1;
  std::deque<Value> ahead = {};  // elements that were read before their turn
  Value before = {}, current = {};
  std::optional<Value> last_changed = {};

  /// Takes the next element into `current`; false at the end.
  bool advance();
  int64_t length();
  /// The element after the current one, or null.
  const Value* peek();
};

/// As Python's ==: 1 == 1.0 == true; lists and tuples differ.
bool equal(Effort& effort, const Value& a, const Value& b);
/// As Python's <. Throws UserError for values that have no order.
bool less(Effort& effort, const Value& a, const Value& b);

/// str(): what printing shows. repr(): the same with strings in quotes.
std::string to_text(const Value& value);
std::string to_repr(const Value& value);
/// Appends str() or, `quoted`, repr(). Throws UserError once `out` has more than `most` bytes
/// (shared values can be far larger as text than in memory), and for what Python prints with its
/// address in memory.
void append_text(const Value& value, bool quoted, size_t most, std::string& out);

struct JsonStyle {
  bool ascii = false;  // ensure_ascii
  bool sorted = false;
  int indent = -1;  // -1: one line
  std::string indent_text;
  std::string item_separator = ", ", key_separator = ": ";
};
/// As Python's json.dumps. Throws UserError for what JSON does not have.
void append_json(Effort& effort, const Value& value, const JsonStyle& style, int level, size_t most,
                 std::string& out);

}  // namespace brrr::jinja
