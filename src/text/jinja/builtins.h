#pragma once
// What templates call: operators, filters, tests and methods, as Jinja and Python have them. They
// throw UserError without a place; the interpreter knows at which expression it is.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "text/jinja/value.h"

namespace brrr::jinja {

/// What one rendering may take: a template from outside must end.
struct Limits {
  size_t work = size_t{1} << 23;    // steps, and what strings and lists take to make
  size_t output = size_t{1} << 26;  // bytes of the result, and of any text on the way
  int depth = 400;                  // calls, blocks and expressions inside one another
};

/// The effort of one rendering so far.
class Work final : public Effort {
 public:
  explicit Work(const Limits& limits) : limits_(limits) {}
  const Limits& limits() const { return limits_; }
  void spend(size_t steps) override {
    if (steps > limits_.work - spent_)
      user_error("the template takes too long: more than {} steps", limits_.work);
    spent_ += steps;
  }
  void spend_text(size_t bytes) {
    if (bytes > limits_.output) user_error("a text has more than {} bytes", limits_.output);
    spend(1 + bytes / 16);
  }
  /// For looking for one text in another.
  void spend_search(std::string_view text, std::string_view part) {
    spend(1 + text.size() / 16 + text.size() / 256 * part.size());
  }
  /// A string that was made.
  Value made(std::string text) {
    spend_text(text.size());
    return Value(std::move(text));
  }

 private:
  Limits limits_;
  size_t spent_ = 0;
};

/// Arguments by place and by name.
struct Given {
  std::vector<Value> places;
  std::vector<std::pair<std::string, Value>> names;

  /// The argument at a place or with a name, or null.
  const Value* find(size_t place, std::string_view name) const;
  /// The same, null also where it is none.
  const Value* find_some(size_t place, std::string_view name) const;
  /// Throws UserError for more arguments than there are names, unknown names, and fewer than
  /// `least`. A name that begins with '/' is of an argument that is given by its place alone.
  void check(const std::string& what, const std::vector<std::string_view>& names,
             size_t least = 0) const;
  /// `otherwise` where it is absent. Throws UserError for another type.
  int64_t integer(size_t place, std::string_view name, int64_t otherwise) const;
  bool flag(size_t place, std::string_view name, bool otherwise) const;
  std::string text(size_t place, std::string_view name, const std::string& otherwise) const;
};

/// + - * / // % **
Value binary(Work& work, const std::string& op, const Value& a, const Value& b);
/// == != < <= > >= in, not in
bool compare(Work& work, const std::string& op, const Value& a, const Value& b);
/// str() with its cost.
std::string text_of(Work& work, const Value& value);
/// A string that is markup where `like` is.
Value made_like(Work& work, const Value& like, std::string text);
/// The text with &, <, >, " and ' as entities of HTML. Markup stays as it is.
std::string escaped(Work& work, const Value& value);

/// iter(): the elements one by one. Throws UserError for what has none. `work` must outlive the
/// result.
Value::Next iterate(Work& work, const Value& value);
/// All elements; an iterator is consumed.
std::vector<Value> elements(Work& work, const Value& value);
/// len(); nothing for what has none.
std::optional<int64_t> length_of(const Value& value);

/// `value[from:to:step]`; null where nothing stands.
Value slice(Work& work, const Value& value, const Value* from, const Value* to, const Value* step);
/// `value.name` and `value[key]`: undefined where there is none. Throws UserError for an undefined
/// value.
Value attribute_of(Work& work, const Value& value, const std::string& name);
Value item_of(Work& work, const Value& value, const Value& key);

Value call_filter(Work& work, const std::string& name, const Value& input, const Given& given);
bool call_test(Work& work, const std::string& name, const Value& value, const Given& given);
bool is_method(const Value& value, std::string_view name);
Value call_method(Work& work, const Value& value, const std::string& name, const Given& given);
/// Is there a filter, a test of that name?
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

}  // namespace brrr::jinja
