#pragma once
// Option tables: one row per option is the single source for the command line, the TOML file,
// --help, --print-config, JSON records and the documents. A table is over a plain struct; a row
// knows its names, its help, and how to set and show one field. A library's parser would not do:
// `_` and `-` are alike here, and aliases and suggestions are the same on the command line and in
// files. Every wrong key or value is a UserError with exit code 2 that says what was expected and
// what was given. Tables are immutable after construction and may be shared by threads.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/errors.h"

namespace brrr {

/// How a value is written and recorded.
/// kOptional: the value may be left out: `--resume` alone means `--resume true`.
/// kList: takes all words up to the next option, or one word per occurrence (OptionInfo::repeats).
enum class OptionKind { kFlag, kInteger, kReal, kText, kOptional, kList };

struct OptionInfo {
  std::string name;                  // canonical, with '-': "max-steps"
  std::vector<std::string> aliases;  // other spellings, with '-'
  std::string group;                 // heading of --help and of the TOML file
  std::string value;                 // what --help shows for the value: "N", "FILE..."
  std::string help;                  // one line, with the unit
  OptionKind kind = OptionKind::kText;
  /// kList: each occurrence takes one word, `--adapter A --adapter B`; what follows is positional.
  bool repeats = false;
  std::vector<std::string> choices = {};  // values offered for completion; others may be valid, too
  std::string shown_default;              // filled by OptionTable::infos()
  /// Not empty: a name of another program that sets the field of the row with this name. It is not
  /// recorded, and --help does not list it.
  std::string stands_for = {};
  /// A run may be resumed with another value, because the value cannot change the bits of the run.
  bool free_on_resume = false;
};

// ---- values
// ---------------------------------------------------------------------------------------

/// true/false, 1/0, on/off, yes/no in any case. Throws UserError (exit 2) for anything else.
bool parse_bool(std::string_view text);
bool is_bool_word(std::string_view text);
/// A decimal integer in [low, high].
int64_t parse_integer(std::string_view text, int64_t low, int64_t high);

struct RealRange {
  double low = -std::numeric_limits<double>::max();
  double high = std::numeric_limits<double>::max();
  bool low_open = false, high_open = false;
};
/// A finite decimal number in the range: "1e-3", "0.1", "12".
double parse_real(std::string_view text, const RealRange& range);
/// Whether parse_real reads the text without a range.
bool is_real(std::string_view text);
/// The shortest text that parse_real reads back to the same bits.
std::string show_real(double value);

/// The index of the choice that has `text` among its spellings. Throws UserError with the nearest.
size_t match_choice(const std::string& text, const std::vector<std::vector<std::string>>& choices);

// ---- names
// ----------------------------------------------------------------------------------------

/// Leading dashes removed, '_' to '-'.
std::string canonical_key(std::string_view key);
/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);
/// The candidate nearest to `word`, or "" when none is near enough to be a likely misspelling.
std::string nearest(std::string_view word, std::span<const std::string> candidates);
/// The index of the row that `key` names. Throws UserError (exit 2) with the nearest name
/// otherwise; `where` opens the message ("run.toml:3: ") and may be empty.
size_t find_option(std::span<const OptionInfo> infos, std::string_view key,
                   const std::string& where = "");

// ---- command line and help
// --------------------------------------------------------------------------

using KeyValues = std::vector<std::pair<std::string, std::string>>;

struct Arguments {
  KeyValues given;  // names as typed, without dashes, in order; a list has one entry per item
  std::vector<std::string> positional;
  bool help = false;
};

/// Splits a command line: `--name value`, `--name=value`, `--flag`, `--no-flag`, `--list a b c`, or
/// `--list a --list b` where the list repeats, and "--" before positional arguments. `-h` and
/// `--help` set help. `command` ("brrr train") is named in errors.
Arguments parse_arguments(std::span<const OptionInfo> infos, std::span<const std::string> args,
                          const std::string& command);

/// The options as aligned text under their group headings. `colour`: ANSI codes for the headings.
std::string options_help(std::span<const OptionInfo> infos, bool colour);
/// The options as Markdown tables, one per group.
std::string options_markdown(std::span<const OptionInfo> infos);

// ---- tables
// ---------------------------------------------------------------------------------------

template <typename T>
struct Option : OptionInfo {
  std::function<void(T&, const std::string&)> set;             // a list: appends
  std::function<void(T&)> clear = {};                          // lists only
  std::function<std::vector<std::string>(const T&)> get = {};  // one string, or the list's items
};

template <typename T>
class OptionTable {
 public:
  using Row = Option<T>;

  OptionTable() = default;
  /// `defaults`: what options that are not given leave.
  explicit OptionTable(T defaults) : defaults_(std::move(defaults)) {}
  const T& defaults() const { return defaults_; }

  /// Starts a group: rows added from here belong to it.
  void group(std::string name) { group_ = std::move(name); }

  Row& integer(std::string name, int64_t T::*field, int64_t low, int64_t high, std::string value,
               std::string help, std::vector<std::string> aliases = {}) {
    Row& row = add(std::move(name), OptionKind::kInteger, value, help, std::move(aliases));
    row.set = [=](T& t, const std::string& s) { t.*field = parse_integer(s, low, high); };
    row.get = [=](const T& t) { return std::vector{std::to_string(t.*field)}; };
    return row;
  }
  Row& real(std::string name, double T::*field, RealRange range, std::string value,
            std::string help, std::vector<std::string> aliases = {}) {
    Row& row = add(std::move(name), OptionKind::kReal, value, help, std::move(aliases));
    row.set = [=](T& t, const std::string& s) { t.*field = parse_real(s, range); };
    row.get = [=](const T& t) { return std::vector{show_real(t.*field)}; };
    return row;
  }
  Row& flag(std::string name, bool T::*field, std::string help,
            std::vector<std::string> aliases = {}) {
    Row& row = add(std::move(name), OptionKind::kFlag, "", help, std::move(aliases));
    row.set = [=](T& t, const std::string& s) { t.*field = parse_bool(s); };
    row.get = [=](const T& t) { return std::vector<std::string>{t.*field ? "true" : "false"}; };
    return row;
  }
  Row& text(std::string name, std::string T::*field, std::string value, std::string help,
            std::vector<std::string> aliases = {}) {
    Row& row = add(std::move(name), OptionKind::kText, value, help, std::move(aliases));
    row.set = [=](T& t, const std::string& s) { t.*field = s; };
    row.get = [=](const T& t) { return std::vector{t.*field}; };
    return row;
  }
  /// Text that is one of `choices`; each is {canonical, other spellings...}.
  Row& choice(std::string name, std::string T::*field,
              std::vector<std::vector<std::string>> choices, std::string value, std::string help,
              std::vector<std::string> aliases = {}) {
    Row& row = text(std::move(name), field, std::move(value), std::move(help), std::move(aliases));
    row.set = [=](T& t, const std::string& s) { t.*field = choices[match_choice(s, choices)][0]; };
    for (const auto& choice : choices) row.choices.push_back(choice[0]);
    return row;
  }
  /// Adds a row whose field has type V: `parse` converts the text, `show` prints the value.
  template <typename V>
  Row& parsed(std::string name, V T::*field, std::function<V(const std::string&)> parse,
              std::function<std::string(const V&)> show, std::string value, std::string help,
              std::vector<std::string> aliases = {}) {
    Row& row = add(std::move(name), OptionKind::kText, std::move(value), std::move(help),
                   std::move(aliases));
    row.set = [=](T& t, const std::string& s) { t.*field = parse(s); };
    row.get = [=](const T& t) { return std::vector{show(t.*field)}; };
    return row;
  }
  /// With `split`, each value may hold several items separated by commas.
  Row& list(std::string name, std::vector<std::string> T::*field, bool split, std::string value,
            std::string help, std::vector<std::string> aliases = {}) {
    Row& row = add(std::move(name), OptionKind::kList, value, help, std::move(aliases));
    row.set = [=](T& t, const std::string& s) { append_items(t.*field, s, split); };
    row.clear = [=](T& t) { (t.*field).clear(); };
    row.get = [=](const T& t) { return t.*field; };
    return row;
  }
  /// A list whose option takes one word per occurrence, so that positional words may follow it.
  Row& repeated(std::string name, std::vector<std::string> T::*field, bool split, std::string value,
                std::string help, std::vector<std::string> aliases = {}) {
    Row& row =
        list(std::move(name), field, split, std::move(value), std::move(help), std::move(aliases));
    row.repeats = true;
    return row;
  }
  /// A name of another program for `target`. Its setter may refuse a value with a reason.
  Row& foreign(std::string name, OptionKind kind, std::string target, std::string help,
               std::function<void(T&, const std::string&)> set,
               std::vector<std::string> aliases = {}) {
    Row& row = add(std::move(name), kind, "", help, std::move(aliases));
    row.stands_for = std::move(target);
    row.set = std::move(set);
    return row;
  }

  /// A row that another table describes; the caller sets its functions.
  Row& add(const OptionInfo& info) {
    Row row;
    static_cast<OptionInfo&>(row) = info;
    rows_.push_back(std::move(row));
    return rows_.back();
  }

  const std::vector<Row>& rows() const { return rows_; }
  Row& row(size_t index) { return rows_[index]; }
  const Row& find(std::string_view key, const std::string& where = "") const {
    const std::string name = canonical_key(key);
    for (const Row& row : rows_)
      if (row.name == name ||
          std::find(row.aliases.begin(), row.aliases.end(), name) != row.aliases.end())
        return row;
    return rows_[find_option(infos(), key, where)];  // throws, with a suggestion
  }
  /// Sets one field; `where` ("--n-layer", "run.toml:3: n_layer") opens the message of a refusal.
  void set(T& t, const Row& row, const std::string& value, const std::string& where) const {
    try {
      row.set(t, value);
    } catch (const UserError& e) {
      throw UserError(where + ": " + e.what(), ExitCode::kUsage);
    }
  }
  /// The rows without their functions.
  std::vector<OptionInfo> infos() const {
    std::vector<OptionInfo> result(rows_.begin(), rows_.end());
    for (size_t i = 0; i < rows_.size(); ++i)
      if (rows_[i].get) {
        const auto items = rows_[i].get(defaults_);
        if (items.size() == 1) result[i].shown_default = items[0] == "\n" ? "\\n" : items[0];
      }
    return result;
  }

 private:
  static void append_items(std::vector<std::string>& items, const std::string& s, bool split) {
    for (size_t begin = 0; begin <= s.size();) {
      const size_t end = split ? std::min(s.find(',', begin), s.size()) : s.size();
      if (end == begin) usage_error("expected a value; got an empty one in '{}'", s);
      items.push_back(s.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  Row& add(std::string name, OptionKind kind, std::string value, std::string help,
           std::vector<std::string> aliases) {
    Row row;
    row.name = std::move(name);
    row.kind = kind;
    row.value = std::move(value);
    row.help = std::move(help);
    row.aliases = std::move(aliases);
    row.group = group_;
    rows_.push_back(std::move(row));
    return rows_.back();
  }

  T defaults_{};
  std::string group_;
  std::vector<Row> rows_;
};

}  // namespace brrr
