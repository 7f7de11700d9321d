#include "text/jinja/interpreter.h"

#include <algorithm>
#include <string_view>

#include "base/errors.h"
#include "text/jinja/globals.h"
#include "text/jinja/scope.h"

namespace brrr::jinja {
namespace {

enum class Flow { goes_on, leaves, next };

class Interpreter {
 public:
  Interpreter(const std::tm& now, const Limits& limits) : now_(now), work_(limits) {}

  MarkedText run(const Body& body, const std::vector<std::pair<std::string, Value>>& variables) {
    Scope globals(nullptr);
    for (const auto& [name, value] : variables) globals.set(name, value, work_);
    Scope top(&globals);
    execute(body, top, result_.text);
    return std::move(result_);
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
        return run_loop(s, scope, evaluate(*s.value, scope), 1, out);
      case Stmt::Kind::set:
        assign(s.target, evaluate(*s.value, scope), scope, s.at);
        break;
      case Stmt::Kind::capture:
        return capture(s, scope,
                       [&](Value text) { assign(s.target, std::move(text), scope, s.at); });
      case Stmt::Kind::macro:
        define(s.macro, scope);
        break;
      case Stmt::Kind::call:
        run_call(s, scope, out);
        break;
      case Stmt::Kind::filter:
        return capture(s, scope, [&](const Value& text) { write(text_of(work_, text), out); });
      case Stmt::Kind::with:
        return run_with(s, scope, out);
      case Stmt::Kind::generation: {
        InnerScope inner(&scope, homes_);
        const size_t begin = out.size();
        execute(s.body, inner, out);
        if (&out == &result_.text) result_.generated.push_back({begin, out.size()});
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

  /// Calls take(text) with the text of a block, through its filters, unless `break` or `continue`
  /// leaves it.
  template <typename Take>
  Flow capture(const Stmt& s, Scope& scope, Take&& take) {
    std::string text;
    InnerScope inner(&scope, homes_);
    if (const Flow flow = execute(s.body, inner, text); flow != Flow::goes_on) return flow;
    const Value value(std::move(text));
    take(s.filter ? filtered(*s.filter, scope, &value) : value);
    return Flow::goes_on;
  }

  Flow run_with(const Stmt& s, Scope& scope, std::string& out) {
    InnerScope inner(&scope, homes_);
    for (const auto& [target, value] : s.assigned)
      assign(target, evaluate(*value, scope), inner, s.at);
    return execute(s.body, inner, out);
  }

  Flow run_loop(const Stmt& s, Scope& scope, const Value& over, int64_t depth, std::string& out) {
    const Level level(*this);
    const auto loop = std::make_shared<Loop>();
    loop->next = iterate(work_, over);
    loop->depth = depth;
    loop->home = &scope;
    if (s.recursive) loop->recursive = &s;
    if (!s.test) {
      if (!over.iterator()) loop->total = length_of(over);
    } else {
      // The test runs as an element is asked for: what the body has done counts.
      loop->next = [this, &s, &scope, next = std::move(loop->next)]() -> std::optional<Value> {
        while (std::optional<Value> item = next()) {
          InnerScope inner(&scope, homes_);
          assign(s.target, *item, inner, s.at);
          if (evaluate(*s.test, inner).truth()) return item;
        }
        return std::nullopt;
      };
    }
    bool completed = false;  // an iteration ran to the end of the body
    while (loop->advance()) {
      InnerScope inner(&scope, homes_);
      inner.set("loop", loop, work_);
      assign(s.target, loop->current, inner, s.at);
      const Flow flow = execute(s.body, inner, out);
      if (flow == Flow::leaves) break;
      completed |= flow == Flow::goes_on;
    }
    if (completed) return Flow::goes_on;
    InnerScope inner(&scope, homes_);
    return execute(s.otherwise, inner, out);
  }

  void assign(const Target& target, Value value, Scope& scope, size_t at) {
    at_ = at;
    if (target.unpacks) {
      const std::vector<Value> items = elements(work_, value);
      if (items.size() != target.parts.size())
        user_error("{} values cannot be assigned to {} names", items.size(), target.parts.size());
      for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope, at);
    } else if (target.attribute.empty()) {
      scope.set(target.name, std::move(value), work_);
    } else {
      const Value* owner = scope.find(target.name, work_);
      Namespace* space = owner ? owner->space() : nullptr;
      if (!space)
        user_error("'{}' is {}; only attributes of a namespace() can be set", target.name,
                   owner ? owner->type_name() : "undefined");
      if (target.attribute.starts_with('_'))
        user_error("the attribute '{}' of a namespace begins with '_'", target.attribute);
      work_.spend(1 + space->members.size() / 8);
      space->set(target.attribute, std::move(value));
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
    if (is_global(e.text)) return Value(std::make_shared<const Function>(Function{e.text}));
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
    return Value::dict(work_, std::move(items));
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
    const auto add = [&](const std::string& name, Value value) {
      for (const auto& [known, unused] : given.names)
        if (known == name) user_error("the argument '{}' is given twice", name.substr(0, 100));
      work_.spend(1 + given.names.size() / 8);
      given.names.emplace_back(name, std::move(value));
    };
    for (const auto& [name, value] : arguments.names) add(name, evaluate(*value, scope));
    if (arguments.list)
      for (Value& value : elements(work_, evaluate(*arguments.list, scope)))
        given.places.push_back(std::move(value));
    if (!arguments.dict) return given;
    const Value dict = evaluate(*arguments.dict, scope);
    if (!dict.dict()) user_error("** unpacks a dictionary, found {}", dict.type_name());
    for (const auto& [name, value] : dict.dict()->items) {
      if (!name.is_string()) user_error("the name of an argument is {}", name.type_name());
      add(name.text(), value);
    }
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
    const auto read_arguments = [&] {
      Given given = given_of(e.arguments, scope);
      if (caller) given.names.emplace_back("caller", *caller);
      at_ = callee.at;
      return given;
    };
    if (callee.kind == Expr::Kind::attribute) {
      const Value owner = evaluate(*callee.parts[0], scope);
      at_ = callee.at;
      if (is_method(owner, callee.text) || owner.is_undefined() ||
          attribute_of(work_, owner, callee.text).is_undefined())
        return call_method(work_, owner, callee.text, read_arguments());
      return call_value(attribute_of(work_, owner, callee.text), read_arguments());
    }
    if (callee.kind == Expr::Kind::name && !scope.find(callee.text, work_))
      return call_global(work_, callee.text, read_arguments(), now_);
    const Value value = evaluate(callee, scope);
    return call_value(value, read_arguments());
  }

  Value call_value(const Value& value, const Given& given) {
    if (value.is_undefined()) user_error("{} is undefined", *value.as<Undefined>()->name);
    if (const Function* function = value.function())
      return function->self ? call_method(work_, *function->self, function->name, given)
                            : call_global(work_, function->name, given, now_);
    if (const Loop* loop = value.loop()) {
      if (!loop->recursive) user_error("the loop is not recursive; it cannot be called");
      given.check("loop", {"iterable"}, 1);
      std::string out;
      run_loop(*loop->recursive, *loop->home, *given.find(0, "iterable"), loop->depth + 1, out);
      return Value(std::move(out));
    }
    if (!value.macro()) user_error("{} cannot be called", value.type_name());
    return call_macro(*value.macro(), given);
  }

  Value call_macro(const Macro& macro, const Given& given) {
    const auto home = std::find_if(homes_.rbegin(), homes_.rend(),
                                   [&](const auto& one) { return one.first == &macro; });
    if (home == homes_.rend())
      user_error("the macro '{}' is called outside the block that defines it", macro.name);
    InnerScope scope(home->second, homes_);
    std::vector<std::pair<Value, Value>> others;  // arguments by name that no parameter takes
    for (const auto& [name, value] : given.names) {
      const auto at = std::find(macro.parameters.begin(), macro.parameters.end(), name);
      const auto place = static_cast<size_t>(at - macro.parameters.begin());
      if (at != macro.parameters.end() && place >= given.places.size()) continue;
      if (name == "caller" && macro.uses_caller)
        scope.set(name, value, work_);
      else if (macro.uses_kwargs)
        others.emplace_back(name, value);
      else
        user_error("the macro '{}' has no argument '{}', or is given it twice", macro.name,
                   name.substr(0, 100));
    }
    if (macro.uses_caller && !given.find(SIZE_MAX, "caller"))
      scope.set("caller", Value::undefined("'caller'"), work_);
    if (macro.uses_kwargs) scope.set("kwargs", Value::dict(work_, std::move(others)), work_);
    const size_t taken = std::min(given.places.size(), macro.parameters.size());
    if (macro.uses_varargs) {
      std::vector<Value> rest(given.places.begin() + static_cast<int64_t>(taken),
                              given.places.end());
      scope.set("varargs", Value::list(std::move(rest), true), work_);
    } else if (taken < given.places.size()) {
      user_error("the macro '{}' takes at most {} arguments; got {}", macro.name, taken,
                 given.places.size());
    }
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
    std::string out;
    execute(macro.body, scope, out);
    return Value(std::move(out));
  }

  static constexpr size_t kMostHomes = 10'000;
  const std::tm now_;
  MarkedText result_;
  Work work_;
  int level_ = 0;
  size_t at_ = 0;
  Homes homes_;  // macros cannot leave the scope of their definition, so it lives while they do
};

}  // namespace

MarkedText interpret(const Source& source, const Body& body,
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
