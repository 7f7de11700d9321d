#include "text/jinja/lexer.h"

#include <algorithm>
#include <cctype>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "text/jinja/python_numbers.h"
#include "text/jinja/python_text.h"

namespace brrr::jinja {
namespace {

constexpr size_t kLongestTemplate = size_t{1} << 20;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool continues_name(char c) { return begins_name(c) || is_digit(c); }

class Lexer {
 public:
  explicit Lexer(const Source& source) : source_(source), text_(source.text()) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) read_data();
    add(Token::Kind::end, "", text_.size());
    return std::move(tokens_);
  }

 private:
  void add(Token::Kind kind, std::string_view text, size_t at) {
    tokens_.push_back({kind, std::string(text), at});
  }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  void skip_space() {
    const uint8_t* const begin = io::as_bytes(text_.data());
    while (at_ < text_.size()) {
      const io::DecodedChar c = io::decode_utf8(begin + at_, begin + text_.size());
      if (!is_space(c.code)) break;
      at_ += c.bytes;
    }
  }
  /// Skips the characters of blank lines and tags only, which are ASCII.
  void skip_ascii_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }

  /// The text before a tag without the white space that the tag takes.
  std::string_view before_tag(std::string_view data, char sign, bool strips_line) const {
    if (sign == '-') return strip(data, nullptr, false, true);
    if (sign == '+' || !strips_line) return data;
    const size_t newline = data.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (line == 0 && !line_starts_) return data;
    return strip(data.substr(line), nullptr, true, true).empty() ? data.substr(0, line) : data;
  }

  /// The sign behind the two characters that begin a tag, which are skipped with it.
  char take_sign() {
    at_ += 2;
    const char sign = peek();
    if (sign != '-' && sign != '+') return '\0';
    ++at_;
    return sign;
  }

  /// Text up to the next tag, and the tag.
  void read_data() {
    const size_t begin = at_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= text_.size()) {
        add(Token::Kind::data, text_.substr(begin), begin);
        at_ = text_.size();
        return;
      }
      const char next = text_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    at_ = tag;
    const char kind = text_[tag + 1];
    const char sign = take_sign();
    const std::string_view data = before_tag(text_.substr(begin, tag - begin), sign, kind != '{');
    if (!data.empty()) add(Token::Kind::data, data, begin);
    line_starts_ = false;
    if (kind == '#') {
      read_comment(tag);
    } else if (kind == '%' && take_raw()) {
      read_raw(tag);
    } else {
      const bool block = kind == '%';
      add(block ? Token::Kind::block_begin : Token::Kind::variable_begin, text_.substr(tag, 2),
          tag);
      read_code(block, tag);
    }
  }

  void read_comment(size_t tag) {
    const size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos) source_.fail(tag, "the comment is not closed; expected #}");
    const char sign = end > at_ ? text_[end - 1] : '\0';
    at_ = end + 2;
    end_tag(sign, true);
  }

  /// Takes the white space behind a tag that its end asks for; at_ is behind "%}".
  void end_tag(char sign, bool block) {
    const size_t end = at_;
    if (sign == '-')
      skip_space();
    else if (block && sign != '+' && peek() == '\n')
      ++at_;
    line_starts_ = at_ > end && text_[at_ - 1] == '\n';
  }

  /// Skips the rest of `{% raw %}` where it is that.
  bool take_raw() {
    const size_t begin = at_;
    skip_ascii_space();
    if (text_.substr(at_, 3) == "raw") {
      at_ += 3;
      skip_ascii_space();
      if (text_.substr(at_, 3) == "-%}") {
        at_ += 3;
        skip_space();
        return true;
      }
      if (text_.substr(at_, 2) == "%}") {
        at_ += 2;
        return true;
      }
    }
    at_ = begin;
    return false;
  }

  void read_raw(size_t tag) {
    const size_t begin = at_;
    for (size_t end = begin; (end = text_.find("{%", end)) != std::string_view::npos; ++end) {
      at_ = end;
      const char sign = take_sign();
      skip_ascii_space();
      if (text_.substr(at_, 6) != "endraw") continue;
      at_ += 6;
      skip_ascii_space();
      const char last = peek();
      if (last == '-' || last == '+') ++at_;
      if (text_.substr(at_, 2) != "%}") continue;
      at_ += 2;
      const std::string_view data = before_tag(text_.substr(begin, end - begin), sign, true);
      if (!data.empty()) add(Token::Kind::data, data, begin);
      end_tag(last, true);
      return;
    }
    source_.fail(tag, "the tag raw is not closed; expected {% endraw %}");
  }

  /// What stands in a tag, and its end.
  void read_code(bool block, size_t tag) {
    const std::string_view end = block ? "%}" : "}}";
    std::string open;  // brackets that were opened
    for (;;) {
      skip_space();
      if (at_ >= text_.size())
        source_.fail(tag, fmt::format("the tag is not closed; expected {}", end));
      const size_t begin = at_;
      if (open.empty()) {
        const char sign = peek();
        const bool has_sign = sign == '-' || (block && sign == '+');
        if (text_.substr(at_ + (has_sign ? 1 : 0), 2) == end) {
          at_ += has_sign ? 3 : 2;
          add(block ? Token::Kind::block_end : Token::Kind::variable_end, end, begin);
          end_tag(has_sign ? sign : '\0', block);
          return;
        }
      }
      const char c = peek();
      if (begins_name(c)) {
        while (continues_name(peek())) ++at_;
        add(Token::Kind::name, text_.substr(begin, at_ - begin), begin);
      } else if (is_digit(c)) {
        read_number();
      } else if (c == '\'' || c == '"') {
        read_string(c);
      } else {
        read_operator(open);
      }
    }
  }

  /// 0x1f, 0b101, 0o17.
  bool read_integer_of_base() {
    const char kind = static_cast<char>(peek(1) | 0x20);
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (peek() != '0' || base == 0) return false;
    const size_t begin = at_;
    at_ += 2;
    while (continues_name(peek())) ++at_;
    const std::string_view text = text_.substr(begin, at_ - begin);
    const auto value = parse_integer(text, base);
    if (!value) source_.fail(begin, fmt::format("{} is not an integer", text.substr(0, 100)));
    add(Token::Kind::integer, std::to_string(*value), begin);
    return true;
  }

  void read_number() {
    if (read_integer_of_base()) return;
    const size_t begin = at_;
    const auto digits = [&] {
      while (is_digit(peek()) || (peek() == '_' && is_digit(peek(1)))) ++at_;
    };
    digits();
    bool real = false;
    const bool after_dot =
        !tokens_.empty() && tokens_.back().text == "." && tokens_.back().kind == Token::Kind::op;
    if (!after_dot && peek() == '.' && is_digit(peek(1))) {
      real = true;
      ++at_;
      digits();
    }
    if (const bool exponent = peek() == 'e' || peek() == 'E'; exponent && !after_dot) {
      const size_t sign = peek(1) == '-' || peek(1) == '+' ? 1 : 0;
      if (is_digit(peek(1 + sign))) {
        real = true;
        at_ += 1 + sign;
        digits();
      }
    }
    if (continues_name(peek()))
      source_.fail(begin, "expected a decimal number or a name that begins with a letter");
    std::string text(text_.substr(begin, at_ - begin));
    std::erase(text, '_');
    if (!real && text[0] == '0' && text.find_first_not_of('0') != std::string::npos)
      source_.fail(begin, "an integer begins with 0");
    add(real ? Token::Kind::real : Token::Kind::integer, text, begin);
  }

  void read_string(char quote) {
    const size_t begin = at_++;
    std::string text;
    for (;;) {
      if (at_ >= text_.size()) source_.fail(begin, "the string does not end");
      const char c = text_[at_++];
      if (c == quote) break;
      if (c == '\\')
        read_escape(begin, text);
      else
        text += c;
    }
    add(Token::Kind::string, text, begin);
  }

  /// Up to `most` digits of a base.
  uint32_t read_digits(uint32_t base, int most, int least, size_t string) {
    uint32_t value = 0;
    int count = 0;
    for (; count < most; ++count, ++at_) {
      const char c = peek();
      const uint32_t digit = is_digit(c)            ? static_cast<uint32_t>(c - '0')
                             : c >= 'a' && c <= 'f' ? static_cast<uint32_t>(c - 'a' + 10)
                             : c >= 'A' && c <= 'F' ? static_cast<uint32_t>(c - 'A' + 10)
                                                    : base;
      if (digit >= base) break;
      value = value * base + digit;
    }
    if (count < least || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
      source_.fail(string, "the string has an escape that is not a character");
    return value;
  }

  void read_escape(size_t string, std::string& text) {
    if (at_ >= text_.size()) source_.fail(string, "the string does not end");
    const char c = text_[at_++];
    static constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t i = kLetters.find(c); i != std::string_view::npos) {
      text += kMeanings[i];
    } else if (c == '\n') {
      // The string goes on in the next line.
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      append_code_point(read_digits(16, digits, digits, string), text);
    } else if (c >= '0' && c <= '7') {
      --at_;
      append_code_point(read_digits(8, 3, 1, string), text);
    } else if (c == 'N') {
      source_.fail(string, "the escape \\N is not supported; write the character itself");
    } else if (static_cast<uint8_t>(c) < 0x80) {
      text.append(1, '\\').append(1, c);
    } else {
      // Jinja spells such a character in ASCII before it reads the escapes.
      const std::string_view rest = text_.substr(at_ - 1);
      const io::DecodedChar character =
          io::decode_utf8(io::as_bytes(rest.data()), io::as_bytes(rest.data() + rest.size()));
      at_ += character.bytes - 1;
      text += character.code < 0x100     ? fmt::format("\\x{:02x}", character.code)
              : character.code < 0x10000 ? fmt::format("\\u{:04x}", character.code)
                                         : fmt::format("\\U{:08x}", character.code);
    }
  }

  void read_operator(std::string& open) {
    static constexpr std::string_view kOperators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "(",
        ")",  "[",  "]",  "{",  "}",  "<",  ">", "=", ".", ":", "|", ",", ";"};
    for (const std::string_view op : kOperators) {
      if (text_.substr(at_, op.size()) != op) continue;
      static constexpr std::string_view kOpen = "([{", kClose = ")]}";
      if (const size_t i = kOpen.find(op[0]); i != std::string_view::npos) {
        open += kClose[i];
      } else if (kClose.find(op[0]) != std::string_view::npos) {
        if (open.empty() || open.back() != op[0])
          source_.fail(at_, fmt::format("'{}' closes nothing", op));
        open.pop_back();
      }
      add(Token::Kind::op, op, at_);
      at_ += op.size();
      return;
    }
    source_.fail(at_, "there is a character that is not allowed in an expression");
  }

  const Source& source_;
  std::string_view text_;
  size_t at_ = 0;
  bool line_starts_ = true;  // what follows begins a line
  std::vector<Token> tokens_;
};

}  // namespace

Source::Source(std::string_view text, std::string name) : name_(std::move(name)) {
  if (text.size() > kLongestTemplate)
    user_error("{}: the template has more than {} bytes", name_, kLongestTemplate);
  if (const auto bad = io::find_invalid_utf8(text))
    user_error("{}: the template is not UTF-8 at byte {}", name_, *bad);
  text_.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      text_ += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      text_ += text[i];
    }
  }
  if (text_.ends_with('\n')) text_.pop_back();
}

std::string Source::place(size_t at) const {
  const std::string_view before = std::string_view(text_).substr(0, at);
  const size_t newline = before.rfind('\n');
  const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
  return fmt::format("{}, line {}, column {}", name_,
                     std::count(before.begin(), before.end(), '\n') + 1,
                     count_characters(before.substr(line)) + 1);
}

void Source::fail(size_t at, const std::string& message) const {
  user_error("{}: {}", place(at), message);
}

std::vector<Token> tokens_of(const Source& source) { return Lexer(source).run(); }

}  // namespace brrr::jinja
