#include "text/patterns/pattern_syntax.h"

#include <algorithm>
#include <charconv>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "formats/json_file.h"
#include "text/patterns/class_reader.h"

namespace brrr::io {
namespace {

constexpr size_t kLongestPattern = 10'000;
constexpr int kDeepestGroup = 100;

/// A part of a pattern: what it begins and ends with, and at which characters it surely matches.
struct Part {
  Symbols first, last, sure;
  bool nullable = false;
  bool skippable = false;  // nullable, and backtracking may choose nothing
  bool look = false;       // a look-around or an anchor
};

class PatternReader : private ClassReader {
 public:
  PatternReader(std::string_view pattern, const std::string& where) : ClassReader(pattern, where) {}

  PatternSyntax read() {
    if (whole_.size() > kLongestPattern)
      user_error("{}: a pattern of {} bytes; the longest that is read has {}", where_,
                 whole_.size(), kLongestPattern);
    for (const uint8_t *p = as_bytes(p_), *end = as_bytes(end_); p < end;) {
      const DecodedChar c = decode_utf8(p, end);
      if (c.code == kInvalidByte || c.code == 0) refuse("a NUL or a byte that is not UTF-8", "");
      p += c.bytes;
    }
    count_groups();
    const Part all = alternatives(0);
    if (p_ != end_) refuse("an unmatched", ")");
    out_.sure = all.sure;
    out_.matches_nothing = all.nullable;
    return std::move(out_);
  }

 private:
  void emit(std::string_view text) { out_.pcre2 += text; }

  /// Notes the names and the number of the groups, and whether anything refers to them.
  void count_groups() {
    const std::string_view text = whole_;
    bool in_class = false;
    for (size_t i = 0; i < text.size(); ++i) {
      const std::string_view rest = text.substr(i);
      if (rest[0] == '\\') {
        const char next = rest.size() > 1 ? rest[1] : '\0';
        refers_ |= !in_class && ((next >= '1' && next <= '9') || next == 'k');
        ++i;
      } else if (in_class) {
        in_class = rest[0] != ']';
      } else if (rest[0] == '[') {
        in_class = true;
        if (rest.substr(1).starts_with(']')) ++i;
        if (rest.substr(1).starts_with("^]")) i += 2;
      } else if (rest[0] == '(') {
        if (!rest.starts_with("(?")) {
          ++unnamed_;
        } else if (rest.size() > 3 &&
                   ((rest[2] == '<' && rest[3] != '=' && rest[3] != '!') || rest[2] == '\'')) {
          const size_t end = rest.find(rest[2] == '<' ? '>' : '\'', 3);
          names_.emplace_back(rest.substr(3, end == std::string_view::npos ? end : end - 3));
        }
      }
    }
  }

  /// Comments and, where spaces mean nothing, spaces.
  void skip_ignored() {
    for (;;) {
      if (take("(?#")) {
        while (more() && *p_ != ')') p_ += *p_ == '\\' && end_ - p_ > 1 ? 2 : 1;
        if (!take(")")) refuse("a comment without its", ")");
      } else if (extended_ && more() && (*p_ == ' ' || (*p_ >= '\t' && *p_ <= '\r'))) {
        ++p_;
      } else if (extended_ && take("#")) {
        while (more() && *p_ != '\n') ++p_;
      } else {
        return;
      }
    }
  }

  Part alternatives(int depth) {
    if (depth > kDeepestGroup) refuse("groups nested deeper than", std::to_string(kDeepestGroup));
    Part all = sequence(depth);
    while (take("|")) {
      out_.pcre2 += '|';
      const Part next = sequence(depth);
      all.first |= next.first;
      all.last |= next.last;
      all.sure |= next.sure;
      all.nullable |= next.nullable;
      all.skippable |= next.skippable;
      all.look |= next.look;
    }
    return all;
  }

  void join(const Symbols& before, const Symbols& after) {
    for (size_t i = 0; i < kSymbols; ++i)
      if (before[i]) out_.adjacent[i] |= after;
  }

  Part sequence(int depth) {
    Part all;
    all.nullable = all.skippable = true;
    bool sure_so_far = false;  // `all.sure` needs the rest to be skippable
    for (skip_ignored(); more() && *p_ != '|' && *p_ != ')'; skip_ignored()) {
      const Part next = repeated(depth);
      join(all.last, next.first);
      if (all.nullable) all.first |= next.first;
      all.last = next.nullable ? all.last | next.last : next.last;
      if (!next.skippable || next.look) {
        all.sure = all.skippable && !sure_so_far && !next.look ? next.sure : Symbols();
        sure_so_far = true;
      }
      all.nullable &= next.nullable;
      all.skippable &= next.skippable && !next.look;
      all.look |= next.look;
    }
    return all;
  }

  /// An atom with its quantifiers; one behind another repeats what stands before it.
  Part repeated(int depth) {
    const size_t begin_out = out_.pcre2.size();
    Part part = atom(depth);
    for (int count = 0;; ++count) {
      skip_ignored();
      if (!more()) return part;
      const auto wrap = [&] {
        out_.pcre2.insert(begin_out, "(?:");
        emit(")");
      };
      uint32_t least = 1, most = 1;
      std::string quantifier;
      if (!quantified(least, most, quantifier)) return part;
      // Engines differ in when a repetition that matches nothing ends.
      if (part.look && part.nullable)
        refuse("a repeated look-around, or a repeated group with one that may match nothing:",
               quantifier);
      if (part.look) out_.local = false;
      if (count > 0) wrap();
      emit(quantifier);
      if (most > 1) join(part.last, part.first);
      if (least > 1) part.sure.reset();
      if (least == 0) {
        part.nullable = true;
        part.skippable = !quantifier.ends_with("+") || quantifier == "+";
        part.sure.reset();
      }
      if (count >= kMostQuantifiers) refuse("too many quantifiers, one behind another:", "");
    }
  }

  /// Reads a quantifier in PCRE2's words; false where there is none.
  bool quantified(uint32_t& least, uint32_t& most, std::string& out) {
    if (take("*")) {
      least = 0, most = 2, out = "*";
    } else if (take("+")) {
      most = 2, out = "+";
    } else if (take("?")) {
      least = 0, out = "?";
    } else if (*p_ == '{' && count(least, most, out)) {
      // A '+' behind a count is a quantifier of its own, and "{2}?" is "(?:{2})?".
      if (least != most && take("?")) out += "?";
      return true;
    } else {
      return false;
    }
    if (take("?"))
      out += "?";
    else if (take("+"))
      out += "+";
    return true;
  }

  /// {n}, {n,}, {,m}, {n,m}; false for a brace that is itself.
  bool count(uint32_t& least, uint32_t& most, std::string& out) {
    const char* p = p_ + 1;
    const auto number = [&](uint32_t& value) {
      const auto [stop, error] = std::from_chars(p, end_, value);
      if (error != std::errc()) return false;
      p = stop;
      return true;
    };
    const bool has_least = number(least);
    bool has_most = false;
    if (!has_least) least = 0;
    most = least;
    if (p < end_ && *p == ',') {
      ++p;
      has_most = number(most);
      if (!has_most) most = 0xffffffffu;
    }
    if (p == end_ || *p != '}' || (!has_least && !has_most)) return false;
    constexpr uint32_t kMostRepeats = 1000;
    if (least > kMostRepeats || (has_most && most > kMostRepeats) || least > most)
      refuse("the quantifier", std::string_view(p_, static_cast<size_t>(p + 1 - p_)));
    p_ = p + 1;
    out = most == 0xffffffffu ? fmt::format("{{{},}}", least)
          : most == least     ? fmt::format("{{{}}}", least)
                              : fmt::format("{{{},{}}}", least, most);
    return true;
  }

  Part look(bool ahead, int depth) {
    const Part inside = alternatives(depth + 1);
    out_.looked_at |= inside.first;
    if (!ahead || inside.nullable || inside.look) out_.local = false;
    Part part;
    part.nullable = part.look = true;
    return part;
  }

  struct Options {
    bool ignore_case, dot_all, extended;
  };
  Options options() const { return {ignore_case_, dot_all_, extended_}; }
  void set(const Options& o) {
    ignore_case_ = o.ignore_case;
    dot_all_ = o.dot_all;
    extended_ = o.extended;
  }

  /// "imx-imx" behind "(?", and the sign that ends it; false where that is something else.
  bool take_options(Options& given, char& end) {
    const char* p = p_;
    bool on = true;
    for (; p < end_; ++p) {
      if (*p == '-')
        on = false;
      else if (*p == 'i')
        given.ignore_case = on;
      else if (*p == 'm')
        given.dot_all = on;
      else if (*p == 'x')
        given.extended = on;
      else
        break;
    }
    if (p == p_ || p == end_ || (*p != ')' && *p != ':')) return false;
    end = *p;
    p_ = p + 1;
    return true;
  }

  Part group(int depth) {
    const char* const begin = p_ - 1;
    const Options outer = options();
    Part part;
    Options given = outer;
    char end = ' ';
    if (take("?=") || take("?!") || take("?<=") || take("?<!")) {
      emit("(" + std::string(begin + 1, p_));
      part = look(p_[-2] != '<', depth);
    } else if (take("?>")) {
      emit("(?>");
      part = alternatives(depth + 1);
      part.skippable = false;
      part.sure.reset();
    } else if (take("?:")) {
      emit("(?:");
      part = alternatives(depth + 1);
    } else if (p_ + 1 < end_ && *p_ == '?' && (p_[1] == '<' || p_[1] == '\'')) {
      const char close = p_[1] == '<' ? '>' : '\'';
      p_ = std::find(p_ + 2, end_, close);
      if (!more()) refuse("a group whose name does not end:", {begin, 4});
      ++p_;
      emit(refers_ ? "(" : "(?:");
      part = alternatives(depth + 1);
    } else if (more() && *p_ == '?') {
      ++p_;
      if (!take_options(given, end))
        refuse("the group",
               "(" + std::string(begin + 1,
                                 std::min<size_t>(4, static_cast<size_t>(end_ - begin - 1))));
      set(given);
      // Options that stand alone hold for the rest of the group around them, its alternatives
      // included.
      emit(given.ignore_case == outer.ignore_case ? "(?:" : given.ignore_case ? "(?i:" : "(?-i:");
      part = alternatives(depth + 1);
    } else {
      emit(refers_ && names_.empty() ? "(" : "(?:");
      ++opened_;
      part = alternatives(depth + 1);
    }
    set(outer);
    if (end != ')' && !take(")")) refuse("a group without its", ")");
    emit(")");
    return part;
  }

  Part atom(int depth) {
    const char c = *p_;
    if (c == '(') {
      ++p_;
      return group(depth);
    }
    if (c == '[') {
      ++p_;
      return one_of(char_class());
    }
    if (c == '.') {
      ++p_;
      return any_character(dot_all_);
    }
    if (c == '^' || c == '$') {
      ++p_;
      return anchor({&c, 1});
    }
    if (c == '*' || c == '+' || c == '?') refuse("nothing before the quantifier", {&c, 1});
    if (at_set()) {
      ++p_;
      return one_of(escaped_set(false));
    }
    if (c != '\\') {
      const uint32_t code = code_point();
      return one_of({literal(code), literal(code), range_of(code, code)});
    }
    ++p_;
    if (!more()) refuse("a backslash at its", "end");
    return escape();
  }

  /// What a backslash begins that is no set; p_ is behind it.
  Part escape() {
    const char c = *p_;
    const std::string word = fmt::format("[{}]", kWideWordItems);
    switch (c) {
      case 'A':
      case 'z':
      case 'Z':
      case 'G':
      case 'K':
        ++p_;
        return anchor(std::string("\\") + c);
      case 'b':
        ++p_;
        return anchor(fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word));
      case 'B':
        ++p_;
        return anchor(fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word));
      case 'N':
      case 'O':
        ++p_;
        return any_character(c == 'O');
      case 'R': {
        ++p_;
        emit("(?>\\r\\n|[\\x0a-\\x0d\\x{85}\\x{2028}\\x{2029}])");
        Part part = seen(range_of('\n', '\r').may);
        part.first.set(kWideSymbol);
        part.last = part.first;
        join(part.last, part.first);
        return part;
      }
      case 'X': {
        ++p_;
        // PCRE2 10.42 takes emoji together that no joiner joins.
        emit(
            "(?>\\p{ExtPict}(?:[\\p{Grapheme_Extend}\\p{EMod}]*\\x{200d}\\p{ExtPict})*"
            "[\\p{Grapheme_Extend}\\p{EMod}\\p{Mc}\\x{200d}]*|\\X)");
        out_.local = false;
        Part part = seen(Symbols().set());
        join(part.last, part.first);
        return part;
      }
      case 'k':
        ++p_;
        return reference_in_brackets();
      default:
        break;
    }
    if (c >= '1' && c <= '9') {
      int number = 0;
      const auto read = std::from_chars(p_, end_, number);
      if (read.ec == std::errc() && (number <= 9 || number <= unnamed_)) {
        p_ = read.ptr;
        return reference(number);
      }
    }
    const uint32_t code = escaped_character();
    return one_of({literal(code), literal(code), range_of(code, code)});
  }

  /// \k<name>, \k'name', \k<1> and \k<-1>; p_ is behind the k.
  Part reference_in_brackets() {
    const char close = take("<") ? '>' : take("'") ? '\'' : '\0';
    const char* const end = close ? std::find(p_, end_, close) : end_;
    if (end == end_) refuse("the escape", "\\k");
    const std::string_view name(p_, static_cast<size_t>(end - p_));
    p_ = end + 1;
    int number = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), number);
    if (read.ec == std::errc() && read.ptr == name.data() + name.size())
      return reference(number < 0 ? opened_ + 1 + number : number);
    if (std::count(names_.begin(), names_.end(), name) != 1)
      refuse("a reference to a group that is not there, or is there twice:", in_quotes(name));
    const auto at = std::find(names_.begin(), names_.end(), name);
    return numbered(static_cast<int>(at - names_.begin()) + 1);
  }

  Part reference(int number) {
    if (!names_.empty() || number < 1 || number > unnamed_)
      refuse("a reference to a group that is not there:", std::to_string(number));
    return numbered(number);
  }

  Part numbered(int number) {
    emit(fmt::format("\\g{{{}}}", number));
    out_.local = false;
    Part part = seen(Symbols().set());
    part.nullable = true;
    join(part.last, part.first);
    return part;
  }

  Part any_character(bool with_newline) {
    emit(with_newline ? "(?s:.)" : "[^\\n]");
    const CharacterSet newline = range_of('\n', '\n');
    return with_newline ? seen_set(complement({})) : seen_set(complement(newline));
  }

  Part anchor(std::string_view text) {
    emit(text);
    out_.local = false;
    Part part;
    part.nullable = part.look = true;
    return part;
  }

  static Part seen(const Symbols& all) {
    Part part;
    part.first = part.last = all;
    return part;
  }

  static Part seen_set(const CharacterSet& set) {
    Part part = seen(set.may);
    part.sure = set.must;
    return part;
  }

  Part one_of(const OneOf& one) {
    emit(one.text());
    CharacterSet set = one.set;
    if (ignore_case_) {
      for (size_t c = 'a'; c <= 'z'; ++c)
        if (set.may[c] || set.may[c - 32]) set.may.set(c), set.may.set(c - 32);
      set.may.set(kWideSymbol);  // the Kelvin sign is a k, U+017F an s
    }
    return seen_set(set);
  }

  static constexpr int kMostQuantifiers = 10;

  bool dot_all_ = false, extended_ = false;
  bool refers_ = false;                  // something refers to a group
  std::vector<std::string_view> names_;  // of groups; then those without one capture nothing
  int unnamed_ = 0, opened_ = 0;
  PatternSyntax out_;
};

}  // namespace

PatternSyntax read_pattern(std::string_view pattern, const std::string& where) {
  return PatternReader(pattern, where).read();
}

}  // namespace brrr::io
