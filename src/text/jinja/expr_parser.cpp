#include "text/jinja/expr_parser.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "formats/json_file.h"
#include "text/jinja/python_numbers.h"

namespace brrr::jinja {
namespace {

// Reading expressions and running them takes stack. A level of the tree may take two of the reader.
constexpr int kDeepestExpr = 120, kDeepestLevel = 2 * kDeepestExpr;

}  // namespace

ExprParser::Level::Level(ExprParser& parser, int& level, int most, const char* what)
    : level_(level) {
  if (level_ >= most)
    parser.fail(fmt::format("{} are nested more than {} levels deep", what, most));
  ++level_;
}

const Token& ExprParser::after() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }

Token ExprParser::take() {
  const Token token = now();
  if (next_ + 1 < tokens_.size()) ++next_;
  return token;
}

bool ExprParser::skip_op(std::string_view text) {
  if (!is_op(text)) return false;
  take();
  return true;
}

bool ExprParser::skip_name(std::string_view text) {
  if (!is_name(text)) return false;
  take();
  return true;
}

std::string ExprParser::found() const {
  switch (now().kind) {
    case Kind::end:
      return "the end of the template";
    case Kind::data:
      return "text";
    case Kind::string:
      return "a string";
    default:
      return io::in_quotes(now().text);
  }
}

void ExprParser::expect_op(std::string_view text) {
  if (!skip_op(text)) fail(fmt::format("expected '{}', found {}", text, found()));
}

void ExprParser::expect_name(std::string_view text) {
  if (!skip_name(text)) fail(fmt::format("expected '{}', found {}", text, found()));
}

std::string ExprParser::take_name(const char* what) {
  if (now().kind != Kind::name) fail(fmt::format("expected {}, found {}", what, found()));
  return take().text;
}

// The loosest binding first.

ExprPtr ExprParser::made(Expr::Kind kind, size_t at) {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->at = at;
  return e;
}

void ExprParser::add(ExprPtr& e, ExprPtr part) {
  if (part) deepen(*e, *part);
  e->parts.push_back(std::move(part));
}

void ExprParser::deepen(Expr& e, const Expr& part) {
  e.depth = std::max(e.depth, part.depth + 1);
  if (e.depth > kDeepestExpr)
    source_.fail(e.at,
                 fmt::format("expressions are nested more than {} levels deep", kDeepestExpr));
}

ExprPtr ExprParser::pair(Expr::Kind kind, size_t at, ExprPtr left, ExprPtr right) {
  ExprPtr e = made(kind, at);
  add(e, std::move(left));
  add(e, std::move(right));
  return e;
}

ExprPtr ExprParser::tuple_or_one(bool conditions) {
  const size_t at = now().at;
  ExprPtr first = conditions ? expression() : either();
  if (!is_op(",")) return first;
  ExprPtr e = made(Expr::Kind::tuple, at);
  add(e, std::move(first));
  while (skip_op(",")) {
    if (now().kind == Kind::variable_end || now().kind == Kind::block_end || is_op(")")) break;
    add(e, conditions ? expression() : either());
  }
  return e;
}

ExprPtr ExprParser::expression() {
  const Level level(*this, expr_level_, kDeepestLevel, "expressions");
  ExprPtr e = either();
  while (is_name("if")) {
    const size_t at = take().at;
    ExprPtr whole = made(Expr::Kind::conditional, at);
    add(whole, either());
    add(whole, std::move(e));
    add(whole, skip_name("else") ? expression() : nullptr);
    e = std::move(whole);
  }
  return e;
}

ExprPtr ExprParser::either() {
  ExprPtr e = both();
  while (is_name("or")) {
    const size_t at = take().at;
    e = pair(Expr::Kind::either, at, std::move(e), both());
  }
  return e;
}

ExprPtr ExprParser::both() {
  ExprPtr e = negation();
  while (is_name("and")) {
    const size_t at = take().at;
    e = pair(Expr::Kind::both, at, std::move(e), negation());
  }
  return e;
}

ExprPtr ExprParser::negation() {
  if (!is_name("not")) return comparison();
  const Level level(*this, expr_level_, kDeepestLevel, "expressions");
  ExprPtr e = made(Expr::Kind::negate, take().at);
  add(e, negation());
  return e;
}

ExprPtr ExprParser::comparison() {
  ExprPtr e = sum();
  ExprPtr whole;
  for (;;) {
    std::string op;
    const size_t at = now().at;
    if (is_name("in")) {
      op = take().text;
    } else if (is_name("not") && after().kind == Kind::name && after().text == "in") {
      take();
      take();
      op = "not in";
    } else {
      for (const char* known : {"==", "!=", "<", "<=", ">", ">="})
        if (is_op(known)) op = known;
      if (op.empty()) break;
      take();
    }
    if (!whole) {
      whole = made(Expr::Kind::compare, at);
      add(whole, std::move(e));
    }
    whole->operators.push_back(op);
    add(whole, sum());
  }
  return whole ? std::move(whole) : std::move(e);
}

ExprPtr ExprParser::binary(ExprPtr left, ExprPtr (ExprParser::*operand)(),
                           std::initializer_list<std::string_view> operators) {
  for (;;) {
    bool found_one = false;
    for (const std::string_view op : operators) {
      if (!is_op(op)) continue;
      const Token token = take();
      left = pair(Expr::Kind::binary, token.at, std::move(left), (this->*operand)());
      left->text = token.text;
      found_one = true;
      break;
    }
    if (!found_one) return left;
  }
}

ExprPtr ExprParser::sum() {
  return binary(concatenation(), &ExprParser::concatenation, {"+", "-"});
}

ExprPtr ExprParser::concatenation() {
  ExprPtr e = product();
  if (!is_op("~")) return e;
  ExprPtr whole = made(Expr::Kind::concat, now().at);
  add(whole, std::move(e));
  while (skip_op("~")) add(whole, product());
  return whole;
}

ExprPtr ExprParser::product() { return binary(power(), &ExprParser::power, {"*", "/", "//", "%"}); }

ExprPtr ExprParser::power() { return binary(unary(), &ExprParser::unary, {"**"}); }

ExprPtr ExprParser::unary() { return unary_with(true); }

ExprPtr ExprParser::unary_with(bool with_filters) {
  const Level level(*this, expr_level_, kDeepestLevel, "expressions");
  ExprPtr e;
  if (is_op("-") || is_op("+")) {
    const Token sign = take();
    e = made(sign.text == "-" ? Expr::Kind::minus : Expr::Kind::plus, sign.at);
    add(e, unary_with(false));
  } else {
    e = primary();
  }
  e = postfix(std::move(e));
  return with_filters ? filters_and_tests(std::move(e)) : std::move(e);
}

ExprPtr ExprParser::primary() {
  const Token token = now();
  switch (token.kind) {
    case Kind::name: {
      take();
      const std::string& name = token.text;
      if (name == "true" || name == "True") return constant(token.at, true);
      if (name == "false" || name == "False") return constant(token.at, false);
      if (name == "none" || name == "None") return constant(token.at, Value());
      ExprPtr e = made(Expr::Kind::name, token.at);
      e->text = name;
      mention(name);
      return e;
    }
    case Kind::string: {
      std::string text;
      while (now().kind == Kind::string) text += take().text;
      return constant(token.at, Value(std::move(text)));
    }
    case Kind::integer: {
      take();
      return constant(token.at, integer_of(token));
    }
    case Kind::real: {
      take();
      const std::optional<double> value = parse_real(token.text);
      if (!value) source_.fail(token.at, fmt::format("{} is not a number", token.text));
      return constant(token.at, *value);
    }
    default:
      break;
  }
  if (is_op("(")) return parenthesis();
  if (is_op("[")) return list();
  if (is_op("{")) return dictionary();
  fail(fmt::format("expected an expression, found {}", found()));
}

void ExprParser::mention(const std::string& name) {
  for (Mentions& macro : open_macros_) {
    macro.caller |= name == "caller";
    macro.varargs |= name == "varargs";
    macro.kwargs |= name == "kwargs";
  }
}

int64_t ExprParser::integer_of(const Token& token) const {
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
  if (error != std::errc())
    source_.fail(token.at, fmt::format("the integer {} has more than 64 bits", token.text));
  return value;
}

ExprPtr ExprParser::constant(size_t at, Value value) {
  ExprPtr e = made(Expr::Kind::constant, at);
  e->value = std::move(value);
  return e;
}

ExprPtr ExprParser::parenthesis() {
  const size_t at = take().at;
  if (skip_op(")")) return made(Expr::Kind::tuple, at);
  ExprPtr e = tuple_or_one();
  expect_op(")");
  return e;
}

ExprPtr ExprParser::list() {
  ExprPtr e = made(Expr::Kind::list, take().at);
  while (!is_op("]")) {
    if (!e->parts.empty()) expect_op(",");
    if (is_op("]")) break;
    add(e, expression());
  }
  expect_op("]");
  return e;
}

ExprPtr ExprParser::dictionary() {
  ExprPtr e = made(Expr::Kind::dict, take().at);
  while (!is_op("}")) {
    if (!e->parts.empty()) expect_op(",");
    if (is_op("}")) break;
    add(e, expression());
    expect_op(":");
    add(e, expression());
  }
  expect_op("}");
  return e;
}

ExprPtr ExprParser::postfix(ExprPtr e) {
  for (;;) {
    const size_t at = now().at;
    if (skip_op(".")) {
      if (now().kind == Kind::integer) {
        const Token index = take();
        e = pair(Expr::Kind::item, at, std::move(e), constant(index.at, integer_of(index)));
      } else {
        ExprPtr whole = made(Expr::Kind::attribute, at);
        whole->text = take_name("the name of an attribute");
        add(whole, std::move(e));
        e = std::move(whole);
      }
    } else if (is_op("[")) {
      e = subscript(std::move(e));
    } else if (is_op("(")) {
      e = call(std::move(e));
    } else {
      return e;
    }
  }
}

ExprPtr ExprParser::subscript(ExprPtr e) {
  const size_t at = take().at;
  ExprPtr first = is_op(":") ? nullptr : expression();
  if (skip_op("]")) return pair(Expr::Kind::item, at, std::move(e), std::move(first));
  ExprPtr whole = made(Expr::Kind::slice, at);
  add(whole, std::move(e));
  add(whole, std::move(first));
  for (int i = 0; i < 2; ++i) {
    const bool colon = skip_op(":");
    if (i == 0 && !colon) fail(fmt::format("expected ']', found {}", found()));
    add(whole, colon && !is_op(":") && !is_op("]") ? expression() : nullptr);
  }
  expect_op("]");
  return whole;
}

ExprPtr ExprParser::call(ExprPtr callee) {
  ExprPtr e = made(Expr::Kind::call, callee->at);
  add(e, std::move(callee));
  arguments(e);
  return e;
}

void ExprParser::arguments(ExprPtr& e) {
  expect_op("(");
  bool first = true;
  while (!is_op(")")) {
    if (!std::exchange(first, false)) expect_op(",");
    if (is_op(")")) break;
    Arguments& given = e->arguments;
    if (is_op("*") || is_op("**")) {
      ExprPtr& unpacked = take().text == "*" ? given.list : given.dict;
      if (unpacked || given.dict)
        fail("more arguments are unpacked than one list and one dictionary");
      unpacked = expression();
      deepen(*e, *unpacked);
    } else if (now().kind == Kind::name && after().kind == Kind::op && after().text == "=") {
      if (given.dict) fail("a keyword argument follows an unpacked dictionary");
      const std::string name = take().text;
      take();
      given.names.emplace_back(name, expression());
      deepen(*e, *given.names.back().second);
    } else {
      if (!given.names.empty() || given.list || given.dict)
        fail("a positional argument follows a keyword argument");
      given.places.push_back(expression());
      deepen(*e, *given.places.back());
    }
  }
  expect_op(")");
}

ExprPtr ExprParser::filters_and_tests(ExprPtr e) {
  for (;;) {
    if (is_op("|"))
      e = filters(std::move(e));
    else if (is_name("is"))
      e = test(std::move(e));
    else if (is_op("("))
      e = call(std::move(e));
    else
      return e;
  }
}

std::string ExprParser::dotted_name(const char* what) {
  std::string name = take_name(what);
  while (skip_op(".")) name += "." + take_name(what);
  return name;
}

ExprPtr ExprParser::filters(ExprPtr e, bool bare) {
  while (std::exchange(bare, false) || skip_op("|")) {
    ExprPtr whole = made(Expr::Kind::filter, now().at);
    whole->text = dotted_name("the name of a filter");
    add(whole, std::move(e));
    if (is_op("(")) arguments(whole);
    e = std::move(whole);
  }
  return e;
}

ExprPtr ExprParser::test(ExprPtr e) {
  take();  // is
  const size_t at = now().at;
  const bool negated = skip_name("not");
  ExprPtr whole = made(Expr::Kind::test, now().at);
  whole->text = dotted_name("the name of a test");
  add(whole, std::move(e));
  if (is_op("(")) {
    arguments(whole);
  } else if (is_name("is")) {
    fail("a test of a test needs parentheses");
  } else if (takes_a_value()) {
    const Level level(*this, expr_level_, kDeepestLevel, "expressions");
    whole->arguments.places.push_back(postfix(primary()));
    deepen(*whole, *whole->arguments.places.back());
  }
  if (!negated) return whole;
  ExprPtr outer = made(Expr::Kind::negate, at);
  add(outer, std::move(whole));
  return outer;
}

bool ExprParser::takes_a_value() const {
  if (now().kind == Kind::string || now().kind == Kind::integer || now().kind == Kind::real)
    return true;
  if (is_op("[") || is_op("{")) return true;
  if (now().kind != Kind::name) return false;
  for (const char* word : {"else", "or", "and", "if", "is", "in", "not", "recursive"})
    if (now().text == word) return false;
  return true;
}

}  // namespace brrr::jinja
