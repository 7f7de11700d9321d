#include "text/jinja/interpreter.h"

#include <algorithm>
#include <string_view>

#include "base/errors.h"

namespace brrr::jinja {
namespace {

constexpr int64_t kLongestRange = 100'000;  // as Jinja's sandbox has it
constexpr std::string_view kFunctions[] = {"range", "namespace", "dict", "raise_exception",
                                           "strftime_now"};

/// What raise_exception says: the template itself refuses the conversation.
class Refusal : public UserError {
 public:
  using UserError::UserError;
};

/// Variables by name. A scope sees those around it; what is set stays in the innermost.
class Scope {
 public:
  explicit Scope(const Scope* outer) : outer_(outer) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  const Value* find(std::string_view name, Work& work) const {
    for (const Scope* scope = this; scope; scope = scope->outer_) {
      work.spend(1 + scope->variables_.size() / 8);
      for (const auto& [known, value] : scope->variables_)
        if (known == name) return &value;
    }
    return nullptr;
  }
  void set(const std::string& name, Value value, Work& work) {
    work.spend(1 + variables_.size() / 8);
    for (auto& [known, old] : variables_)
      if (known == name) {
        old = std::move(value);
        return;
      }
    variables_.emplace_back(name, std::move(value));
  }

 private:
  const Scope* outer_;
  std::vector<std::pair<std::string, Value>> variables_;
};

/// Macros and the scopes that they were defined in, the innermost last.
using Homes = std::vector<std::pair<const Macro*, const Scope*>>;

/// A scope that forgets its macros when it ends.
class InnerScope : public Scope {
 public:
  InnerScope(const Scope* outer, Homes& homes)
      : Scope(outer), homes_(homes), count_(homes.size()) {}
  InnerScope(const InnerScope&) = delete;
  InnerScope& operator=(const InnerScope&) = delete;
  ~InnerScope() { homes_.resize(count_); }

 private:
  Homes& homes_;
  size_t count_;
};

enum class Flow { goes_on, leaves, next };

class Interpreter {
 public:
  Interpreter(const std::tm& now, const Limits& limits) : now_(now), work_(limits) {}

  std::string run(const Body& body, const std::vector<std::pair<std::string, Value>>& variables) {
    Scope globals(nullptr);
    for (const auto& [name, value] : variables) globals.set(name, value, work_);
    Scope top(&globals);
    std::string out;
    execute(body, top, out);
    return out;
  }
  /// Where the template was when something went wrong.
  size_t at() const { return at_; }

 private:
  /// Counts what is inside one another while it lives.
  class Level {
   public:
    explicit Level(Interpreter& in) : level_(in.level_) {
      if (level_ >= in.work_.limits().depth)
        user_error("calls, blocks and expressions are nested more than {} levels deep",
                   in.work_.limits().depth);
      ++level_;
    }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --level_; }

   private:
    int& level_;
  };

  void write(std::string_view text, std::string& out) {
    work_.spend_text(text.size());
    out += text;
    if (out.size() > work_.limits().output)
      user_error("the rendered text has more than {} bytes", work_.limits().output);
  }

  // ---- Statements

  Flow execute(const Body& body, Scope& scope, std::string& out) {
    const Level level(*this);
    for (const auto& statement : body)
      if (const Flow flow = execute(*statement, scope, out); flow != Flow::goes_on) return flow;
    return Flow::goes_on;
  }

  Flow execute(const Stmt& s, Scope& scope, std::string& out) {
    at_ = s.at;
    work_.spend(1);
    switch (s.kind) {
      case Stmt::Kind::data:
        write(s.text, out);
        break;
      case Stmt::Kind::print:
        print(s, scope, out);
        break;
      case Stmt::Kind::condition:
        for (const auto& [test, body] : s.branches)
          if (evaluate(*test, scope).truth()) return execute(body, scope, out);
        return execute(s.otherwise, scope, out);
      case Stmt::Kind::loop:
        run_loop(s, scope, out);
        break;
      case Stmt::Kind::set:
        assign(s.target, evaluate(*s.value, scope), scope, s.at);
        break;
      case Stmt::Kind::capture:
        assign(s.target, captured(s, scope), scope, s.at);
        break;
      case Stmt::Kind::macro:
        define(s.macro, scope);
        break;
      case Stmt::Kind::call:
        run_call(s, scope, out);
        break;
      case Stmt::Kind::filter:
        write(text_of(work_, captured(s, scope)), out);
        break;
      case Stmt::Kind::with:
        return run_with(s, scope, out);
      case Stmt::Kind::generation: {
        InnerScope inner(&scope, homes_);
        execute(s.body, inner, out);
        break;
      }
      case Stmt::Kind::leave:
        return Flow::leaves;
      case Stmt::Kind::next:
        return Flow::next;
    }
    return Flow::goes_on;
  }

  void print(const Stmt& s, Scope& scope, std::string& out) {
    const Value value = evaluate(*s.value, scope);
    at_ = s.at;
    if (value.is_string())
      write(value.text(), out);
    else
      write(text_of(work_, value), out);
  }

  /// The text of a block, through its filters.
  Value captured(const Stmt& s, Scope& scope) {
    std::string text;
    InnerScope inner(&scope, homes_);
    execute(s.body, inner, text);
    Value value(std::move(text));
    if (!s.filter) return value;
    return filtered(*s.filter, scope, &value);
  }

  Flow run_with(const Stmt& s, Scope& scope, std::string& out) {
    InnerScope inner(&scope, homes_);
    for (const auto& [target, value] : s.assigned)
      assign(target, evaluate(*value, scope), inner, s.at);
    return execute(s.body, inner, out);
  }

  void run_loop(const Stmt& s, Scope& scope, std::string& out) {
    std::vector<Value> items = elements(work_, evaluate(*s.value, scope));
    if (s.test) {
      std::vector<Value> kept;
      for (Value& item : items) {
        InnerScope inner(&scope, homes_);
        assign(s.target, item, inner, s.at);
        if (evaluate(*s.test, inner).truth()) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) {
      execute(s.otherwise, scope, out);
      return;
    }
    const auto loop = std::make_shared<Loop>();
    loop->items = std::move(items);
    for (; loop->index < loop->items.size(); ++loop->index) {
      InnerScope inner(&scope, homes_);
      inner.set("loop", loop, work_);
      assign(s.target, loop->items[loop->index], inner, s.at);
      if (execute(s.body, inner, out) == Flow::leaves) break;
    }
  }

  void assign(const Target& target, Value value, Scope& scope, size_t at) {
    at_ = at;
    if (!target.attribute.empty()) {
      const Value* owner = scope.find(target.names[0], work_);
      Namespace* space = owner ? owner->space() : nullptr;
      if (!space)
        user_error("'{}' is {}; only attributes of a namespace() can be set", target.names[0],
                   owner ? owner->type_name() : "undefined");
      if (target.attribute.starts_with('_'))
        user_error("the attribute '{}' of a namespace begins with '_'", target.attribute);
      work_.spend(1 + space->members.size() / 8);
      space->set(target.attribute, std::move(value));
    } else if (!target.unpacks) {
      scope.set(target.names[0], std::move(value), work_);
    } else {
      const std::vector<Value> items = elements(work_, value);
      if (items.size() != target.names.size())
        user_error("{} values cannot be assigned to {} names", items.size(), target.names.size());
      for (size_t i = 0; i < items.size(); ++i) scope.set(target.names[i], items[i], work_);
    }
  }

  void define(const Macro& macro, Scope& scope) {
    scope.set(macro.name, Value(&macro), work_);
    homes_.emplace_back(&macro, &scope);
    if (homes_.size() > kMostHomes) user_error("there are more than {} macros", kMostHomes);
  }

  void run_call(const Stmt& s, Scope& scope, std::string& out) {
    InnerScope inner(&scope, homes_);
    define(s.macro, inner);
    const Value caller(&s.macro);
    const Value result = call(*s.value, inner, &caller);
    write(text_of(work_, result), out);
  }

  // ---- Expressions

  Value evaluate(const Expr& e, Scope& scope) {
    const Level level(*this);
    work_.spend(1);
    at_ = e.at;
    switch (e.kind) {
      case Expr::Kind::constant:
        return e.value;
      case Expr::Kind::name:
        return named(e, scope);
      case Expr::Kind::list:
      case Expr::Kind::tuple:
        return listed(e, scope);
      case Expr::Kind::dict:
        return dictionary(e, scope);
      case Expr::Kind::attribute: {
        const Value owner = evaluate(*e.parts[0], scope);
        at_ = e.at;
        return attribute_of(work_, owner, e.text);
      }
      case Expr::Kind::item: {
        const Value owner = evaluate(*e.parts[0], scope), key = evaluate(*e.parts[1], scope);
        at_ = e.at;
        return item_of(work_, owner, key);
      }
      case Expr::Kind::slice:
        return sliced(e, scope);
      case Expr::Kind::call:
        return call(e, scope, nullptr);
      case Expr::Kind::filter:
        return filtered(e, scope, nullptr);
      case Expr::Kind::test:
        return tested(e, scope);
      case Expr::Kind::negate:
        return !evaluate(*e.parts[0], scope).truth();
      case Expr::Kind::minus:
      case Expr::Kind::plus:
        return signed_number(e, scope);
      case Expr::Kind::binary: {
        const Value a = evaluate(*e.parts[0], scope), b = evaluate(*e.parts[1], scope);
        at_ = e.at;
        return binary(work_, e.text, a, b);
      }
      case Expr::Kind::concat:
        return joined(e, scope);
      case Expr::Kind::both: {
        Value a = evaluate(*e.parts[0], scope);
        return a.truth() ? evaluate(*e.parts[1], scope) : a;
      }
      case Expr::Kind::either: {
        Value a = evaluate(*e.parts[0], scope);
        return a.truth() ? a : evaluate(*e.parts[1], scope);
      }
      case Expr::Kind::compare:
        return compared(e, scope);
      case Expr::Kind::conditional:
        if (evaluate(*e.parts[0], scope).truth()) return evaluate(*e.parts[1], scope);
        return e.parts[2] ? evaluate(*e.parts[2], scope)
                          : Value::undefined("the value of an `if` without `else`");
    }
    return {};
  }

  Value named(const Expr& e, const Scope& scope) {
    if (const Value* found = scope.find(e.text, work_)) return *found;
    for (const std::string_view function : kFunctions)
      if (e.text == function) return Function();
    return Value::undefined("'" + e.text + "'");
  }

  Value listed(const Expr& e, Scope& scope) {
    std::vector<Value> items;
    for (const ExprPtr& part : e.parts) items.push_back(evaluate(*part, scope));
    at_ = e.at;
    return Value::list(std::move(items), e.kind == Expr::Kind::tuple);
  }

  Value dictionary(const Expr& e, Scope& scope) {
    std::vector<std::pair<Value, Value>> items;
    for (size_t i = 0; i + 1 < e.parts.size(); i += 2) {
      Value key = evaluate(*e.parts[i], scope);
      items.emplace_back(std::move(key), evaluate(*e.parts[i + 1], scope));
    }
    at_ = e.at;
    work_.spend(1 + items.size() * items.size() / 8);
    return Value::dict(std::move(items));
  }

  Value sliced(const Expr& e, Scope& scope) {
    const Value owner = evaluate(*e.parts[0], scope);
    Value bounds[3];
    const Value* given[3] = {};
    for (size_t i = 0; i < 3; ++i) {
      if (!e.parts[i + 1]) continue;
      bounds[i] = evaluate(*e.parts[i + 1], scope);
      given[i] = &bounds[i];
    }
    at_ = e.at;
    return slice(work_, owner, given[0], given[1], given[2]);
  }

  Given given_of(const Arguments& arguments, Scope& scope) {
    Given given;
    for (const ExprPtr& value : arguments.places) given.places.push_back(evaluate(*value, scope));
    for (const auto& [name, value] : arguments.names)
      given.names.emplace_back(name, evaluate(*value, scope));
    return given;
  }

  /// `innermost`: what the chain's first filter is given, where the tree has nothing.
  Value filtered(const Expr& e, Scope& scope, const Value* innermost) {
    const Level level(*this);
    const Value input = !e.parts[0] ? *innermost
                        : innermost ? filtered(*e.parts[0], scope, innermost)
                                    : evaluate(*e.parts[0], scope);
    const Given given = given_of(e.arguments, scope);
    at_ = e.at;
    return call_filter(work_, e.text, input, given);
  }

  Value tested(const Expr& e, Scope& scope) {
    const Value value = evaluate(*e.parts[0], scope);
    const Given given = given_of(e.arguments, scope);
    at_ = e.at;
    return call_test(work_, e.text, value, given);
  }

  Value signed_number(const Expr& e, Scope& scope) {
    const Value value = evaluate(*e.parts[0], scope);
    at_ = e.at;
    if (!value.is_number()) user_error("{} has no sign", value.type_name());
    if (!value.is_integer()) return e.kind == Expr::Kind::minus ? -value.number() : value.number();
    if (value.integer() == INT64_MIN) user_error("an integer has more than 64 bits");
    return e.kind == Expr::Kind::minus ? -value.integer() : value.integer();
  }

  Value joined(const Expr& e, Scope& scope) {
    std::string text;
    for (const ExprPtr& part : e.parts) {
      const Value value = evaluate(*part, scope);
      at_ = e.at;
      write(text_of(work_, value), text);
    }
    return Value(std::move(text));
  }

  Value compared(const Expr& e, Scope& scope) {
    Value left = evaluate(*e.parts[0], scope);
    for (size_t i = 0; i < e.operators.size(); ++i) {
      Value right = evaluate(*e.parts[i + 1], scope);
      at_ = e.at;
      if (!compare(work_, e.operators[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  Value call(const Expr& e, Scope& scope, const Value* caller) {
    const Expr& callee = *e.parts[0];
    if (callee.kind == Expr::Kind::attribute) {
      const Value owner = evaluate(*callee.parts[0], scope);
      const Given given = given_of(e.arguments, scope);
      at_ = callee.at;
      return call_method(work_, owner, callee.text, given);
    }
    if (callee.kind == Expr::Kind::name && !scope.find(callee.text, work_)) {
      const Given given = given_of(e.arguments, scope);
      at_ = e.at;
      return call_function(callee, given);
    }
    const Value value = evaluate(callee, scope);
    const Given given = given_of(e.arguments, scope);
    at_ = e.at;
    if (value.is_undefined()) user_error("{} is undefined", *value.as<Undefined>()->name);
    if (!value.macro()) user_error("{} cannot be called", value.type_name());
    return call_macro(*value.macro(), given, caller);
  }

  Value call_macro(const Macro& macro, const Given& given, const Value* caller) {
    std::vector<std::string_view> names(macro.parameters.begin(), macro.parameters.end());
    given.check(fmt::format("the macro '{}'", macro.name), names);
    const auto home = std::find_if(homes_.rbegin(), homes_.rend(),
                                   [&](const auto& one) { return one.first == &macro; });
    BRRR_CHECK(home != homes_.rend(), "a macro was called that is not defined");
    InnerScope scope(home->second, homes_);
    const size_t first_default = macro.parameters.size() - macro.defaults.size();
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const std::string& name = macro.parameters[i];
      if (const Value* value = given.find(i, name))
        scope.set(name, *value, work_);
      else if (i >= first_default)
        scope.set(name, evaluate(*macro.defaults[i - first_default], scope), work_);
      else
        scope.set(name, Value::undefined("the parameter '" + name + "'"), work_);
    }
    if (caller) scope.set("caller", *caller, work_);
    std::string out;
    execute(macro.body, scope, out);
    return Value(std::move(out));
  }

  Value call_function(const Expr& callee, const Given& given) {
    const std::string& name = callee.text;
    if (name == "range") return range(given);
    if (name == "namespace" || name == "dict") return name_values(name, given);
    if (name == "raise_exception") {
      given.check(name, {"message"}, 1);
      throw Refusal(text_of(work_, *given.find(0, "message")));
    }
    if (name == "strftime_now") {
      given.check(name, {"format"}, 1);
      return date(given.text(0, "format", ""));
    }
    at_ = callee.at;
    user_error("'{}' is undefined, or not a supported function", name);
  }

  Value range(const Given& given) {
    given.check("range", {"start", "stop", "step"}, 1);
    int64_t begin = 0, end = given.integer(0, "start", 0);
    if (given.places.size() > 1) {
      begin = end;
      end = given.integer(1, "stop", 0);
    }
    const int64_t step = given.integer(2, "step", 1);
    if (step == 0) user_error("the step of range cannot be 0");
    std::vector<Value> items;
    for (int64_t i = begin; step > 0 ? i < end : i > end;) {
      if (static_cast<int64_t>(items.size()) >= kLongestRange)
        user_error("range has more than {} values", kLongestRange);
      items.emplace_back(i);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    work_.spend(items.size());
    return Value::list(std::move(items));
  }

  /// namespace() and dict(): from a dictionary, and from arguments with names.
  Value name_values(const std::string& what, const Given& given) {
    if (given.places.size() > 1) user_error("{} takes at most one value without a name", what);
    std::vector<std::pair<Value, Value>> items;
    if (!given.places.empty()) {
      if (!given.places[0].dict())
        user_error("{} takes a dictionary, found {}", what, given.places[0].type_name());
      items = given.places[0].dict()->items;
    }
    for (const auto& [name, value] : given.names) items.emplace_back(name, value);
    work_.spend(1 + items.size() * items.size() / 8);
    if (what == "dict") return Value::dict(std::move(items));
    auto space = std::make_shared<Namespace>();
    for (auto& [name, value] : items) {
      if (!name.is_string() || name.text().starts_with('_'))
        user_error("the attributes of a namespace are names that do not begin with '_'");
      space->set(name.text(), std::move(value));
    }
    return Value(std::move(space));
  }

  Value date(const std::string& format) {
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
    const size_t size = std::strftime(text, sizeof text, format.c_str(), &now_);
    return work_.made(std::string(text, size));
  }

  static constexpr size_t kMostHomes = 10'000;
  const std::tm now_;
  Work work_;
  int level_ = 0;
  size_t at_ = 0;
  Homes homes_;  // macros cannot leave the scope of their definition, so it lives while they do
};

}  // namespace

std::string interpret(const Source& source, const Body& body,
                      const std::vector<std::pair<std::string, Value>>& variables,
                      const std::tm& now, const Limits& limits) {
  Interpreter interpreter(now, limits);
  try {
    return interpreter.run(body, variables);
  } catch (const Refusal& e) {
    user_error("{}: the chat template refuses the conversation: {}", source.place(interpreter.at()),
               e.what());
  } catch (const UserError& e) {
    source.fail(interpreter.at(), e.what());
  }
}

}  // namespace brrr::jinja
