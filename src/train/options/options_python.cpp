// Configuration files of nanoGPT: assignments of literals. Nothing is run.

#include <charconv>
#include <cmath>
#include <limits>
#include <variant>

#include "base/file.h"
#include "train/options.h"

namespace brrr::train {
namespace {

/// What makes a line none that is understood; the caller adds file and line.
[[noreturn]] void refuse_line(const std::string& what) { throw UserError(what, ExitCode::kUsage); }

using PythonNumber = std::variant<int64_t, double>;

double as_double(const PythonNumber& n) {
  return std::visit([](auto v) { return static_cast<double>(v); }, n);
}

/// A value of the file: nothing for None, the items of a list or tuple.
struct PythonValue {
  std::vector<std::string> items = {};
  bool is_list = false, is_number = false;
};

/// A statement of the file, read from the left.
class PythonLine {
 public:
  explicit PythonLine(std::string_view text) : text_(text) {}

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  /// Nothing but a comment follows.
  bool is_done() {
    skip_blanks();
    return at_ == text_.size() || text_[at_] == '#';
  }
  bool take(std::string_view word) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  std::string name() {
    skip_blanks();
    const size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || (at_ > begin && is_digit(text_[at_]))))
      ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  /// What follows a name up to its value: "=", or an annotation and perhaps "=". False: neither. At
  /// the end of the line then: a name that is only declared.
  bool take_assignment() {
    if (take(":")) {
      if (is_done()) return false;
      for (int depth = 0; at_ < text_.size() && text_[at_] != '#'; ++at_) {
        const char c = text_[at_];
        depth += c == '[' || c == '(' ? 1 : c == ']' || c == ')' ? -1 : 0;
        if (depth == 0 && c == '=') break;
      }
      return is_done() || take("=");
    }
    return !text_.substr(at_).starts_with("==") && take("=");
  }

  /// The value as the options read it.
  PythonValue value() {
    PythonValue result = item();
    if (take(",")) result = rest_of_list(std::move(result), "");
    const bool has_end = take(";");
    if (!is_done()) {
      if (has_end) refuse_line("a second statement in the line is not read");
      refuse_line(fmt::format("'{}' is too much", text_.substr(at_)));
    }
    return result;
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }

  char next() {
    skip_blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool is_quote(size_t at) const {
    return at < text_.size() && (text_[at] == '"' || text_[at] == '\'');
  }

  PythonValue item() {
    const Depth depth(depth_);
    const char first = next();
    if (first == '{') refuse_line("a dictionary or a set is no value of an option");
    if (first == '[') {
      take("[");
      return rest_of_list({}, "]");
    }
    if (first == '(') {
      // A tuple, or parentheses around a value: those around numbers belong to the formula.
      const size_t begin = at_;
      take("(");
      if (take(")")) return {.is_list = true};
      PythonValue inner = item();
      if (take(",")) return rest_of_list(std::move(inner), ")");
      if (!inner.is_number) {
        if (!take(")")) refuse_line("a parenthesis is not closed");
        return inner;
      }
      at_ = begin;
    }
    if (is_quote(at_)) return {{strings()}};
    if (is_letter(first)) {
      const std::string word = name();
      if (is_quote(at_)) {
        if (word != "u" && word != "U")
          refuse_line(fmt::format("a string with the prefix {} is not read", word));
        return {{strings()}};
      }
      if (word == "True" || word == "False") return {{word == "True" ? "true" : "false"}};
      if (word != "None") refuse_line(fmt::format("'{}' is no literal", word));
      return {};
    }
    const PythonNumber number = sum();
    const auto* whole = std::get_if<int64_t>(&number);
    if (whole == nullptr && !std::isfinite(std::get<double>(number)))
      refuse_line("the result is no finite number");
    return {{whole != nullptr ? std::to_string(*whole) : show_real(std::get<double>(number))},
            false,
            true};
  }

  /// Up to `end`; "": up to the end of the line. `first`: the item before the first comma.
  PythonValue rest_of_list(PythonValue first, std::string_view end) {
    PythonValue list{{}, true};
    const auto add = [&](PythonValue&& one) {
      if (one.is_list) refuse_line("a list inside a list is not supported here");
      if (one.items.empty()) refuse_line("None in a list is not supported here");
      list.items.push_back(std::move(one.items[0]));
    };
    const auto is_at_end = [&] { return end.empty() ? is_done() : take(end); };
    const bool has_first = end != "]";
    if (has_first) add(std::move(first));
    while (!is_at_end()) {
      if (is_done()) refuse_line(fmt::format("the list is not closed by '{}'", end));
      add(item());
      if (is_done()) continue;
      if (!take(",") && (end.empty() || next() != end[0]))
        refuse_line(fmt::format("expected ',' in the list; got '{}'", text_.substr(at_)));
    }
    return list;
  }

  /// Strings that stand side by side are one.
  std::string strings() {
    std::string all = string();
    while (next(), is_quote(at_)) all += string();
    return all;
  }

  std::string string() {
    const char quote = text_[at_++];
    std::string result;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == quote) {
        ++at_;
        return result;
      }
      if (c != '\\') {
        result += c;
        continue;
      }
      if (++at_ == text_.size()) break;
      switch (text_[at_]) {
        case 'n':
          result += '\n';
          break;
        case 't':
          result += '\t';
          break;
        case '\\':
        case '\'':
        case '"':
          result += text_[at_];
          break;
        default:
          refuse_line(fmt::format("the escape \\{} is not known", text_[at_]));
      }
    }
    refuse_line("the string does not end");
  }

  PythonNumber sum() {
    PythonNumber left = product();
    for (;;) {
      if (take("+"))
        left = calculate('+', left, product());
      else if (take("-"))
        left = calculate('-', left, product());
      else
        return left;
    }
  }
  PythonNumber product() {
    PythonNumber left = factor();
    for (;;) {
      if (take("//"))
        left = calculate('f', left, factor());
      else if (take("/"))
        left = calculate('/', left, factor());
      else if (take("%"))
        left = calculate('%', left, factor());
      else if (take("*"))
        left = calculate('*', left, factor());
      else
        return left;
    }
  }
  PythonNumber factor() {
    const Depth depth(depth_);
    if (take("-")) return calculate('-', PythonNumber(int64_t{0}), factor());
    if (take("+")) return factor();
    const PythonNumber base = atom();
    return take("**") ? calculate('p', base, factor()) : base;
  }
  PythonNumber atom() {
    if (take("(")) {
      const Depth depth(depth_);
      const PythonNumber inner = sum();
      if (!take(")")) refuse_line("a parenthesis is not closed");
      return inner;
    }
    skip_blanks();
    const size_t begin = at_;
    bool is_real = false;
    std::string digits;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const bool is_sign =
          (c == '+' || c == '-') && at_ > begin && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E');
      if (!is_digit(c) && c != '.' && c != '_' && c != 'e' && c != 'E' && !is_sign) break;
      is_real = is_real || c == '.' || c == 'e' || c == 'E';
      if (c != '_') digits += c;
      ++at_;
    }
    const std::string_view written = text_.substr(begin, at_ - begin);
    for (size_t i = 0; i < written.size(); ++i)
      if (written[i] == '_' && (i == 0 || i + 1 == written.size() || !is_digit(written[i - 1]) ||
                                !is_digit(written[i + 1])))
        refuse_line(fmt::format("'{}' is no number: underscores stand between digits", written));
    const char *first = digits.data(), *last = first + digits.size();
    int64_t whole = 0;
    double real = 0;
    const auto [end, error] =
        is_real ? std::from_chars(first, last, real) : std::from_chars(first, last, whole);
    if (digits.empty() || error != std::errc() || end != last)
      refuse_line(fmt::format("'{}' is no number", text_.substr(begin)));
    return is_real ? PythonNumber(real) : PythonNumber(whole);
  }

  static PythonNumber calculate(char op, const PythonNumber& a, const PythonNumber& b) {
    const bool divides = op == '/' || op == 'f' || op == '%';
    if (divides && as_double(b) == 0) refuse_line("it divides by 0");
    const auto *x = std::get_if<int64_t>(&a), *y = std::get_if<int64_t>(&b);
    if (x != nullptr && y != nullptr && op != '/' && !(op == 'p' && *y < 0))
      return of_integers(op, *x, *y);
    const double p = as_double(a), q = as_double(b);
    switch (op) {
      case '+':
        return p + q;
      case '-':
        return p - q;
      case '*':
        return p * q;
      case '/':
        return p / q;
      case 'f':
        return std::floor(p / q);
      case '%':
        return p - q * std::floor(p / q);
      default:
        return std::pow(p, q);
    }
  }
  static int64_t of_integers(char op, int64_t x, int64_t y) {
    int64_t result = 1;
    bool overflows = false;
    const bool wraps = y == -1 && x == std::numeric_limits<int64_t>::min();
    switch (op) {
      case '+':
        overflows = __builtin_add_overflow(x, y, &result);
        break;
      case '-':
        overflows = __builtin_sub_overflow(x, y, &result);
        break;
      case '*':
        overflows = __builtin_mul_overflow(x, y, &result);
        break;
      case 'f':
      case '%':
        if (wraps) refuse_line("a number is too large");
        // Python rounds down, C++ towards 0.
        result = x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0);
        return op == 'f' ? result : x - result * y;
      default:
        if (x == -1) return y % 2 == 0 ? 1 : -1;
        if (x == 0 || x == 1) return y == 0 ? 1 : x;
        for (int64_t i = 0; i < y && !overflows; ++i)
          overflows = __builtin_mul_overflow(result, x, &result);
    }
    if (overflows) refuse_line("a number is too large");
    return result;
  }

  /// A hostile file nests as deep as it is long.
  class Depth {
   public:
    explicit Depth(int& depth) : depth_(depth) {
      if (++depth_ > 100) refuse_line("it nests too deeply");
    }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    ~Depth() { --depth_; }

   private:
    int& depth_;
  };

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

struct Statement {
  std::string text;
  int line;  // of the file, where it begins
};

/// The lines of the file without strings that stand alone, which are comments. Those that an open
/// bracket or a backslash continues are one.
std::vector<Statement> statements_in(std::string_view text) {
  std::vector<Statement> all;
  std::string_view comment_mark;  // of a string over several lines that stands alone
  int number = 0, depth = 0;
  bool goes_on = false;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!comment_mark.empty()) {
      if (line.find(comment_mark) != std::string_view::npos) comment_mark = {};
      continue;
    }
    if (!goes_on) {
      const size_t first = std::min(line.find_first_not_of(" \t"), line.size());
      const std::string_view mark = line.substr(first, 3);
      if (mark == "\"\"\"" || mark == "'''") {
        if (line.find(mark, first + 3) == std::string_view::npos) comment_mark = mark;
        continue;
      }
      all.push_back({"", number});
      depth = 0;
    }
    char quote = 0;
    size_t at = 0;
    for (; at < line.size(); ++at) {
      const char c = line[at];
      if (quote != 0) {
        if (c == '\\')
          ++at;
        else if (c == quote)
          quote = 0;
      } else if (c == '#') {
        break;
      } else if (c == '"' || c == '\'') {
        quote = c;
      } else if (c == '(' || c == '[' || c == '{') {
        ++depth;
      } else if (c == ')' || c == ']' || c == '}') {
        --depth;
      }
    }
    line = line.substr(0, std::min(at, line.size()));
    const bool has_backslash = quote == 0 && line.ends_with('\\');
    if (has_backslash) line.remove_suffix(1);
    all.back().text += line;
    goes_on = has_backslash || (depth > 0 && quote == 0);
    if (goes_on) all.back().text += ' ';
  }
  return all;
}

}  // namespace

std::vector<FileSetting> read_python(const std::string& path) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const UserError& e) {
    throw UserError(fmt::format("--config: {}", e.what()), ExitCode::kUsage);
  }
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // a byte order mark
  std::vector<FileSetting> settings;
  for (const auto& [content, number] : statements_in(text)) {
    PythonLine line(content);
    if (line.is_done() || line.take("import ") || line.take("from ")) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    const std::string name = line.name();
    PythonValue value;
    try {
      if (name.empty() || !line.take_assignment())
        refuse_line(fmt::format("'{}' is no assignment", content));
      if (line.is_done() && content.find('=') == std::string::npos) continue;  // only declared
      value = line.value();
    } catch (const UserError& e) {
      // Names that only Weights & Biases sees may be calculated: they have no meaning here.
      if (name.starts_with("wandb_")) continue;
      usage_error(
          "{}: {}{}; expected NAME = VALUE, where VALUE is a string, True, False, None, numbers "
          "with + - * /, or a list of them: the file is read, not run",
          where, name.empty() ? "" : name + ": ", e.what());
    }
    if (value.is_list && value.items.empty()) settings.push_back({name, "", where});
    if (value.is_list && train_option_table().find(name, where + ": ").kind != OptionKind::kList)
      usage_error("{}: {}: expected one value; got a list", where, name);
    for (const std::string& item : value.items) settings.push_back({name, item, where});
  }
  return settings;
}

}  // namespace brrr::train
