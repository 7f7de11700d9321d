#pragma once
// The values of a template, as Python has them: none, booleans, integers of 64 bits, doubles,
// strings of UTF-8, lists, tuples and dictionaries in the order of insertion. Containers do not
// change once they are made, so values never form a cycle; namespaces, macros and the variable
// `loop` cannot be put into containers.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace brrr::jinja {

struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Macro;

/// A name that leads to nothing: it prints as "", and most of what is done with it is an error.
struct Undefined {
  std::shared_ptr<const std::string> name;
};
struct None {};
/// A method or function that is mentioned without being called.
struct Function {};

class Value {
 public:
  /// Containers inside one another, and values in all of them together, beyond which a value is
  /// refused. A value that is shared counts as often as it is seen.
  static constexpr int kDeepest = 100;
  static constexpr size_t kMostParts = size_t{1} << 22;
  using Text = std::shared_ptr<const std::string>;

  Value() : data_(None{}) {}
  Value(bool value) : data_(value) {}     // NOLINT: literals read best this way
  Value(int64_t value) : data_(value) {}  // NOLINT
  Value(double value) : data_(value) {}   // NOLINT
  Value(std::string text)                 // NOLINT
      : data_(std::make_shared<const std::string>(std::move(text))) {}
  Value(std::string_view text) : Value(std::string(text)) {}            // NOLINT
  Value(const char* text) : Value(std::string(text)) {}                 // NOLINT
  Value(Function function) : data_(function) {}                         // NOLINT
  Value(std::shared_ptr<Namespace> space) : data_(std::move(space)) {}  // NOLINT
  Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}         // NOLINT
  Value(const Macro* macro) : data_(macro) {}                           // NOLINT
  static Value undefined(std::string name);
  /// Throws UserError for values beyond the limits and for what containers do not hold.
  static Value list(std::vector<Value> items, bool tuple = false);
  /// The last of equal keys counts, at the place of the first.
  static Value dict(std::vector<std::pair<Value, Value>> items);
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
  bool is_string() const { return as<Text>() != nullptr; }
  const List* list() const;
  const Dict* dict() const;
  Namespace* space() const;
  const Loop* loop() const;
  const Macro* macro() const;
  /// Only what the questions above allow.
  const std::string& text() const { return **as<Text>(); }
  int64_t integer() const { return is_bool() ? (*as<bool>() ? 1 : 0) : *as<int64_t>(); }
  double number() const { return is_integer() ? static_cast<double>(integer()) : *as<double>(); }

  bool truth() const;
  /// "a string", "an integer": for errors.
  const char* type_name() const;
  /// What a value is in measure: itself, or itself and all that it holds.
  struct Size {
    int depth = 0;
    size_t parts = 1;
  };
  Size size() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<Loop>,
               const Macro*, Function>
      data_;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  Value::Size size;
};

struct Dict {
  std::vector<std::pair<Value, Value>> items = {};
  Value::Size size;
  /// Null where there is none.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
};

/// What `namespace()` makes: attributes that `set` changes.
struct Namespace {
  std::vector<std::pair<std::string, Value>> members;
  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};

/// The variable `loop` of one iteration.
struct Loop {
  std::vector<Value> items;
  size_t index = 0;
};

/// As Python's ==: 1 == 1.0 == true; lists and tuples differ.
bool equal(const Value& a, const Value& b);
/// As Python's <. Throws UserError for values that have no order.
bool less(const Value& a, const Value& b);
/// str(): what printing shows. repr(): the same with strings in quotes.
std::string to_text(const Value& value);
std::string to_repr(const Value& value);
/// Appends str() or, `quoted`, repr(). Throws UserError once `out` has more than `most` bytes:
/// shared values can be far larger as text than in memory.
void append_text(const Value& value, bool quoted, size_t most, std::string& out);

struct JsonStyle {
  bool ascii = false;  // ensure_ascii
  bool sorted = false;
  int indent = -1;  // -1: one line
  std::string indent_text;
  std::string item_separator = ", ", key_separator = ": ";
};
/// As Python's json.dumps. Throws UserError for what JSON does not have.
void append_json(const Value& value, const JsonStyle& style, int level, size_t most,
                 std::string& out);

}  // namespace brrr::jinja
