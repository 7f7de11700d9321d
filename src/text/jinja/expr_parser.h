#pragma once
// Reads the expressions of a template; the base of what reads its statements.

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace brrr::jinja {

class ExprParser {
 protected:
  explicit ExprParser(const Source& source) : source_(source), tokens_(tokens_of(source)) {}

  using Kind = Token::Kind;

  /// Counts levels while it lives.
  class Level {
   public:
    Level(ExprParser& parser, int& level, int most, const char* what);
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --level_; }

   private:
    int& level_;
  };

  const Token& now() const { return tokens_[next_]; }
  const Token& after() const;
  Token take();
  bool is_op(std::string_view text) const { return now().kind == Kind::op && now().text == text; }
  bool is_name(std::string_view text) const {
    return now().kind == Kind::name && now().text == text;
  }
  bool skip_op(std::string_view text);
  bool skip_name(std::string_view text);
  [[noreturn]] void fail(const std::string& message) const { source_.fail(now().at, message); }
  /// What stands here, for errors.
  std::string found() const;
  void expect_op(std::string_view text);
  void expect_name(std::string_view text);
  std::string take_name(const char* what);

  /// `a, b` is a tuple; a condition (`a if b`) may be forbidden.
  ExprPtr tuple_or_one(bool conditions = true);
  ExprPtr expression();
  /// A chain of filters; `bare`: the first stands without a bar.
  ExprPtr filters(ExprPtr e, bool bare = false);

  /// Which of the special names of macros the body of one mentions.
  struct Mentions {
    bool caller = false, varargs = false, kwargs = false;
  };

  const Source& source_;
  std::vector<Token> tokens_;
  size_t next_ = 0;
  std::vector<Mentions> open_macros_;

 private:
  ExprPtr made(Expr::Kind kind, size_t at);
  /// Adds a part and keeps the depth.
  void add(ExprPtr& e, ExprPtr part);
  void deepen(Expr& e, const Expr& part);
  ExprPtr pair(Expr::Kind kind, size_t at, ExprPtr left, ExprPtr right);
  ExprPtr either();
  ExprPtr both();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr binary(ExprPtr left, ExprPtr (ExprParser::*operand)(),
                 std::initializer_list<std::string_view> operators);
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary();
  ExprPtr unary_with(bool with_filters);
  ExprPtr primary();
  void mention(const std::string& name);
  int64_t integer_of(const Token& token) const;
  ExprPtr constant(size_t at, Value value);
  ExprPtr parenthesis();
  ExprPtr list();
  ExprPtr dictionary();
  ExprPtr postfix(ExprPtr e);
  ExprPtr subscript(ExprPtr e);
  ExprPtr call(ExprPtr callee);
  void arguments(ExprPtr& e);
  ExprPtr filters_and_tests(ExprPtr e);
  std::string dotted_name(const char* what);
  ExprPtr test(ExprPtr e);
  /// `is divisibleby 3`: does a value stand behind the name of a test?
  bool takes_a_value() const;

  int expr_level_ = 0;
};

}  // namespace brrr::jinja
