#include "text/jinja/parser.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "formats/json_file.h"
#include "text/jinja/expr_parser.h"

namespace brrr::jinja {
namespace {

constexpr int kDeepestBlock = 40;

class Parser : public ExprParser {
 public:
  explicit Parser(const Source& source) : ExprParser(source) {}

  Body run() { return block({}); }

 private:
  void end_of_tag() {
    if (now().kind != Kind::block_end) fail(fmt::format("expected '%}}', found {}", found()));
    take();
  }

  // ---- Statements

  /// Statements up to a tag with one of these names, whose begin and name are taken; last_ is the
  /// name. Without names: up to the end of the template.
  Body block(std::initializer_list<std::string_view> ends) {
    const Level level(*this, block_level_, kDeepestBlock, "blocks");
    Body body;
    for (;;) {
      const size_t at = now().at;
      if (now().kind == Kind::end) {
        if (ends.size() == 0) return body;
        source_.fail(
            block_begin_.empty() ? at : block_begin_.back(),
            fmt::format("the block is not closed; expected {{% {} %}}", *(ends.end() - 1)));
      }
      if (now().kind == Kind::data) {
        body.push_back(statement(Stmt::Kind::data, at));
        body.back()->text = take().text;
      } else if (now().kind == Kind::variable_begin) {
        take();
        body.push_back(statement(Stmt::Kind::print, at));
        body.back()->value = tuple_or_one();
        if (now().kind != Kind::variable_end)
          fail(fmt::format("expected '}}}}', found {}", found()));
        take();
      } else {
        take();  // {%
        if (now().kind != Kind::name) fail(fmt::format("expected a tag, found {}", found()));
        for (const std::string_view end : ends)
          if (is_name(end)) {
            last_ = take().text;
            return body;
          }
        tag(body);
      }
    }
  }

  /// The block of a tag that begins at `at`.
  Body block_of(size_t at, std::initializer_list<std::string_view> ends) {
    end_of_tag();
    block_begin_.push_back(at);
    Body body = block(ends);
    block_begin_.pop_back();
    return body;
  }

  static std::unique_ptr<Stmt> statement(Stmt::Kind kind, size_t at) {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->at = at;
    return s;
  }

  void tag(Body& body) {
    const size_t at = now().at;
    const std::string name = now().text;
    using Read = std::unique_ptr<Stmt> (Parser::*)(size_t);
    static constexpr std::pair<std::string_view, Read> kTags[] = {
        {"if", &Parser::read_if},       {"for", &Parser::read_for},
        {"set", &Parser::read_set},     {"macro", &Parser::read_macro},
        {"call", &Parser::read_call},   {"filter", &Parser::read_filter},
        {"with", &Parser::read_with},   {"generation", &Parser::read_generation},
        {"break", &Parser::read_leave}, {"continue", &Parser::read_leave}};
    for (const auto& [known, read] : kTags)
      if (known == name) {
        take();
        body.push_back((this->*read)(at));
        end_of_tag();
        return;
      }
    if (name.starts_with("end") || name == "else" || name == "elif")
      fail(fmt::format("the tag {} closes no block", io::in_quotes(name)));
    fail(fmt::format("the tag {} is not supported", io::in_quotes(name)));
  }

  std::unique_ptr<Stmt> read_if(size_t at) {
    auto s = statement(Stmt::Kind::condition, at);
    do {
      ExprPtr test = tuple_or_one(false);
      Body body = block_of(at, {"elif", "else", "endif"});
      s->branches.emplace_back(std::move(test), std::move(body));
    } while (last_ == "elif");
    if (last_ == "else") s->otherwise = block_of(at, {"endif"});
    return s;
  }

  std::unique_ptr<Stmt> read_for(size_t at) {
    auto s = statement(Stmt::Kind::loop, at);
    s->target = target(false);
    expect_name("in");
    s->value = tuple_or_one(false);
    if (skip_name("if")) s->test = expression();
    s->recursive = skip_name("recursive");
    ++loop_level_;
    s->body = block_of(at, {"else", "endfor"});
    --loop_level_;
    if (last_ == "else")
      s->otherwise = s->recursive ? closed_body(at, "endfor") : block_of(at, {"endfor"});
    return s;
  }

  std::unique_ptr<Stmt> read_set(size_t at) {
    auto s = statement(Stmt::Kind::set, at);
    s->target = target(true);
    if (skip_op("=")) {
      s->value = tuple_or_one();
      return s;
    }
    s->kind = Stmt::Kind::capture;
    if (is_op("|")) s->filter = filters(nullptr);
    s->body = block_of(at, {"endset"});
    return s;
  }

  Macro parameters(Macro macro) {
    if (skip_op("(")) {
      while (!is_op(")")) {
        if (!macro.parameters.empty()) expect_op(",");
        if (is_op(")")) break;
        macro.parameters.push_back(take_name("the name of a parameter"));
        if (skip_op("="))
          macro.defaults.push_back(expression());
        else if (!macro.defaults.empty())
          fail("a parameter without a default follows one that has a default");
      }
      expect_op(")");
    }
    return macro;
  }

  /// A body that `break` and `continue` do not leave.
  Body closed_body(size_t at, std::string_view end) {
    const int outside = std::exchange(loop_level_, 0);
    Body body = block_of(at, {end});
    loop_level_ = outside;
    return body;
  }

  void read_macro_body(Macro& macro, size_t at, std::string_view end) {
    open_macros_.emplace_back();
    macro.body = closed_body(at, end);
    const Mentions mentions = open_macros_.back();
    open_macros_.pop_back();
    const auto is_free = [&](const char* name) {
      return std::find(macro.parameters.begin(), macro.parameters.end(), name) ==
             macro.parameters.end();
    };
    macro.uses_caller = mentions.caller && is_free("caller");
    macro.uses_varargs = mentions.varargs && is_free("varargs");
    macro.uses_kwargs = mentions.kwargs && is_free("kwargs");
  }

  std::unique_ptr<Stmt> read_macro(size_t at) {
    auto s = statement(Stmt::Kind::macro, at);
    s->macro.name = take_name("the name of the macro");
    if (!is_op("(")) fail(fmt::format("expected '(', found {}", found()));
    s->macro = parameters(std::move(s->macro));
    read_macro_body(s->macro, at, "endmacro");
    return s;
  }

  std::unique_ptr<Stmt> read_call(size_t at) {
    auto s = statement(Stmt::Kind::call, at);
    s->macro = parameters({.name = "caller"});
    s->value = expression();
    if (s->value->kind != Expr::Kind::call) source_.fail(at, "expected a call of a macro");
    read_macro_body(s->macro, at, "endcall");
    return s;
  }

  std::unique_ptr<Stmt> read_filter(size_t at) {
    auto s = statement(Stmt::Kind::filter, at);
    s->filter = filters(nullptr, true);
    s->body = block_of(at, {"endfilter"});
    return s;
  }

  std::unique_ptr<Stmt> read_with(size_t at) {
    auto s = statement(Stmt::Kind::with, at);
    while (now().kind != Kind::block_end) {
      if (!s->assigned.empty()) expect_op(",");
      Target to = target(false);
      expect_op("=");
      s->assigned.emplace_back(std::move(to), expression());
    }
    s->body = block_of(at, {"endwith"});
    return s;
  }

  std::unique_ptr<Stmt> read_generation(size_t at) {
    auto s = statement(Stmt::Kind::generation, at);
    s->body = closed_body(at, "endgeneration");
    return s;
  }

  std::unique_ptr<Stmt> read_leave(size_t at) {
    const bool leaves = tokens_[next_ - 1].text == "break";
    if (loop_level_ == 0)
      source_.fail(at, fmt::format("'{}' is outside a loop", leaves ? "break" : "continue"));
    return statement(leaves ? Stmt::Kind::leave : Stmt::Kind::next, at);
  }

  /// A name, an attribute of a namespace where that may be, or a tuple of them in parentheses.
  Target one_target(bool may_be_attribute) {
    const Level level(*this, block_level_, kDeepestBlock, "targets");
    if (skip_op("(")) {
      Target t = target(may_be_attribute);
      expect_op(")");
      return t;
    }
    Target t;
    t.name = take_name("the name of a variable");
    for (const char* constant : {"true", "false", "none", "True", "False", "None", "loop"})
      if (t.name == constant) fail(fmt::format("{} cannot be assigned", io::in_quotes(t.name)));
    if (may_be_attribute && skip_op(".")) t.attribute = take_name("the name of an attribute");
    return t;
  }

  Target target(bool may_be_attribute) {
    Target t = one_target(may_be_attribute);
    if (!is_op(",")) return t;
    Target all;
    all.unpacks = true;
    all.parts.push_back(std::move(t));
    while (skip_op(",") && (is_op("(") || (now().kind == Kind::name && !is_name("in"))))
      all.parts.push_back(one_target(may_be_attribute));
    return all;
  }

  std::string last_;                 // the tag that ended the last block
  std::vector<size_t> block_begin_;  // where the blocks began that are open
  int block_level_ = 0, loop_level_ = 0;
};

}  // namespace

Body parse(const Source& source) { return Parser(source).run(); }

}  // namespace brrr::jinja
