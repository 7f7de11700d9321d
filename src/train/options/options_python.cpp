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

/// A line of the file, read from the left.
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

  /// The value as the options read it; nothing for None.
  std::optional<std::string> value() {
    skip_blanks();
    std::optional<std::string> result;
    if (at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'')) {
      result = string();
    } else if (at_ < text_.size() && is_letter(text_[at_])) {
      const std::string word = name();
      if (word == "True" || word == "False")
        result = word == "True" ? "true" : "false";
      else if (word != "None")
        refuse_line(fmt::format("'{}' is no literal", word));
    } else {
      const PythonNumber number = sum();
      const auto* whole = std::get_if<int64_t>(&number);
      if (whole == nullptr && !std::isfinite(std::get<double>(number)))
        refuse_line("the result is no finite number");
      result = whole != nullptr ? std::to_string(*whole) : show_real(std::get<double>(number));
    }
    if (!is_done()) refuse_line(fmt::format("'{}' is too much", text_.substr(at_)));
    return result;
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
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
  std::string_view comment_mark;  // of a string over several lines that stands alone
  int number = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view content = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (content.ends_with('\r')) content.remove_suffix(1);
    if (!comment_mark.empty()) {
      if (content.find(comment_mark) != std::string_view::npos) comment_mark = {};
      continue;
    }
    PythonLine line(content);
    if (line.is_done() || line.take("import ") || line.take("from ")) continue;
    bool is_text = false;
    for (const std::string_view mark : {"\"\"\"", "'''"})
      if (line.take(mark)) {
        is_text = true;
        if (content.find(mark, content.find(mark) + mark.size()) == std::string_view::npos)
          comment_mark = mark;
      }
    if (is_text) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    const std::string name = line.name();
    try {
      if (name.empty() || !line.take("="))
        refuse_line(fmt::format("'{}' is no assignment", content));
      if (const auto value = line.value()) settings.push_back({name, *value, where});
    } catch (const UserError& e) {
      // Names that only Weights & Biases sees may be calculated: they have no meaning here.
      if (name.starts_with("wandb_")) continue;
      usage_error(
          "{}: {}{}; expected NAME = VALUE, where VALUE is a string, True, False, or numbers with "
          "+ - * /: the file is read, not run",
          where, name.empty() ? "" : name + ": ", e.what());
    }
  }
  return settings;
}

}  // namespace brrr::train
