#include "data/labelled/labelled_columns.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <span>
#include <system_error>

#include "base/errors.h"
#include "base/human.h"

namespace brrr::io {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::string_view kTextNames[] = {"text", "sentence", "sentence1"};
constexpr std::string_view kWordsNames[] = {"text", "sentence", "words", "tokens"};
constexpr std::string_view kText2Names[] = {"text2", "sentence2"};
constexpr std::string_view kLabelNames[] = {"label", "labels", "score"};
constexpr std::string_view kTagsNames[] = {"label", "labels", "tags", "ner_tags"};

bool is_alike(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

bool has_name(std::span<const std::string_view> fields, Names names) {
  return std::any_of(fields.begin(), fields.end(), [&](std::string_view field) {
    return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
      return is_alike(without_spaces(field), name);
    });
  });
}

bool is_position(std::string_view option) {
  return !option.empty() &&
         std::all_of(option.begin(), option.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_tag(std::string_view word) {
  return word == "O" || (word.size() > 2 && word[1] == '-' &&
                         std::string_view("BIES").find(word[0]) != std::string_view::npos);
}

/// What is asked of columns while they are found.
class ColumnFinder {
 public:
  ColumnFinder(const TsvTable& table, const LabelledFileOptions& options, const std::string& name)
      : table_(table), options_(options), name_(name), is_tags_(options.kind == LabelKind::kTags) {}

  LabelledColumns find() {
    LabelledColumns found;
    found.has_header = has_header_ = decide_header();
    if (is_tags_ && !options_.text2_column.empty())
      usage_error("--text2-column {}: tagged words have no second text; leave it out",
                  options_.text2_column);
    auto text = told("--text-column", options_.text_column);
    auto label = told("--label-column", options_.label_column);
    auto text2 = told("--text2-column", options_.text2_column);
    if (has_header_) {
      if (!label) label = named(label_names(), "--label-column");
      if (!text) {
        text = named(text_names(), "--text-column");
        if (text && !text2 && !is_tags_) text2 = named(kText2Names, "--text2-column");
      }
    }
    found.was_told = text || label;
    if (!label && !text) label = shown_label();
    if (!label) label = only_other_than({text, text2}, "the label", "--label-column");
    if (!text) {
      const auto rest = others_than({label, text2});
      const bool is_pair = rest.size() == 2 && !text2 && !has_header_ && !is_tags_;
      if (is_pair) text2 = rest[1];
      text = is_pair ? rest[0] : only_other_than({label, text2}, "the text", "--text-column");
    }
    if (*text == *label || text2 == text || text2 == label)
      usage_error(
          "{}: column {} was named twice; expected different columns for the text, the second text "
          "and the label",
          name_, *text == *label || text2 == text ? *text + 1 : *label + 1);
    found.text = *text;
    found.label = *label;
    found.text2 = text2;
    for (const Column column : {text, label, text2})
      if (column && *column < table_.problems.size() && !table_.problems[*column].empty())
        throw UserError(table_.problems[*column]);
    return found;
  }

 private:
  using Column = std::optional<size_t>;

  Names text_names() const { return is_tags_ ? Names(kWordsNames) : Names(kTextNames); }
  Names label_names() const { return is_tags_ ? Names(kTagsNames) : Names(kLabelNames); }

  bool decide_header() const {
    if (options_.header != TsvHeader::kAuto) return options_.header == TsvHeader::kYes;
    for (const std::string* option :
         {&options_.text_column, &options_.text2_column, &options_.label_column})
      if (!option->empty() && !is_position(*option)) return true;
    return has_name(std::span(table_.fields).first(table_.columns), label_names());
  }

  /// The column that an option says.
  Column told(std::string_view option, const std::string& value) const {
    if (value.empty()) return std::nullopt;
    if (is_position(value)) {
      size_t number = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      if (error != std::errc() || number < 1 || number > table_.columns)
        usage_error("{} {}: {} has {}, numbered from 1", option, value, name_, column_count());
      return number - 1;
    }
    if (!has_header_)
      usage_error("{} {}: without a header columns have no names; expected a number from 1 to {}",
                  option, value, table_.columns);
    for (const bool exactly : {true, false})
      for (size_t c = 0; c < table_.columns; ++c) {
        const std::string_view header = without_spaces(table_.at(0, c));
        if (exactly ? header == value : is_alike(header, value)) return c;
      }
    usage_error("{} {}: {} has no such column; its first row, line {}, names {}", option, value,
                name_, table_.lines[0], all_names());
  }

  /// The column of the header that has one of the names; nothing when none has.
  Column named(Names names, std::string_view option) const {
    Column found;
    for (size_t c = 0; c < table_.columns; ++c) {
      const std::string_view header = without_spaces(table_.at(0, c));
      const bool matches = std::any_of(names.begin(), names.end(),
                                       [&](std::string_view n) { return is_alike(header, n); });
      if (matches && found)
        user_error(
            "{}: both columns '{}' and '{}' of the header in line {} fit; choose one with {}",
            name_, without_spaces(table_.at(0, *found)), header, table_.lines[0], option);
      if (matches) found = c;
    }
    return found;
  }

  std::vector<size_t> others_than(std::initializer_list<Column> taken) const {
    std::vector<size_t> others;
    for (size_t c = 0; c < table_.columns; ++c)
      if (std::find(taken.begin(), taken.end(), Column(c)) == taken.end()) others.push_back(c);
    return others;
  }

  size_t only_other_than(std::initializer_list<Column> taken, std::string_view what,
                         std::string_view option) const {
    const auto others = others_than(taken);
    if (others.size() == 1) return others[0];
    if (others.empty())
      user_error("{}: expected another column for {}; line {} has {}", name_, what, table_.lines[0],
                 column_count());
    user_error(
        "{}: cannot tell which of the columns {} is {}; choose it with {}, by its name in the "
        "header or its number from 1",
        name_, all_names(), what, option);
  }

  /// Whether a column of the rows can be the label: the fields of no text are alike.
  bool is_label_like(size_t column) const {
    for (size_t row = first_row(); row < table_.rows(); ++row) {
      const std::string_view field = without_spaces(table_.at(row, column));
      const auto words = split_at_spaces(field);
      if (words.empty()) return false;
      if (options_.kind == LabelKind::kClasses && words.size() > 1) return false;
      if (options_.kind == LabelKind::kValues &&
          !std::all_of(words.begin(), words.end(), [](auto w) { return number_in(w); }))
        return false;
      if (is_tags_ && !std::all_of(words.begin(), words.end(), is_tag)) return false;
    }
    return true;
  }

  size_t distinct_fields(size_t column) const {
    std::set<std::string_view> fields;
    for (size_t row = first_row(); row < table_.rows(); ++row)
      fields.insert(table_.at(row, column));
    return fields.size();
  }

  /// The label's column as the fields show it. Only the first or the last can be it, only one of
  /// all may look like labels, and it must not vary more than the texts do.
  size_t shown_label() const {
    Column found;
    bool is_clear = table_.columns == 2 || (table_.columns == 3 && !is_tags_);
    for (size_t c = 0; is_clear && c < table_.columns; ++c) {
      if (!is_label_like(c)) continue;
      is_clear = !found && (c == 0 || c + 1 == table_.columns);
      found = c;
    }
    if (is_clear && found && options_.kind == LabelKind::kClasses) {
      const size_t labels = distinct_fields(*found);
      for (size_t c = 0; c < table_.columns; ++c)
        is_clear = is_clear && labels <= distinct_fields(c);
    }
    if (table_.columns == 1)
      user_error(
          "{}: expected a text and its label in each row, separated by a tab, a comma or a "
          "semicolon; line {} has 1 column",
          name_, table_.lines[0]);
    if (!is_clear || !found)
      user_error(
          "{}: cannot tell from {} (line {}) which column is the text and which the label; pass "
          "--text-column and --label-column, each a name in the header or a number from 1 to {}",
          name_, all_names(), table_.lines[0], table_.columns);
    return *found;
  }

  std::string column_count() const {
    return counted(static_cast<int64_t>(table_.columns), "column");
  }
  size_t first_row() const { return has_header_ ? 1 : 0; }

  /// The fields of the first row, the beginning of each.
  std::string all_names() const {
    constexpr size_t kShown = 8;
    std::string names;
    for (size_t c = 0; c < std::min(table_.columns, kShown); ++c)
      names += fmt::format("{}'{}'", c == 0 ? "" : ", ", shown_field(table_.at(0, c)));
    return table_.columns > kShown ? names + ", ..." : names;
  }

  const TsvTable& table_;
  const LabelledFileOptions& options_;
  const std::string& name_;
  bool is_tags_;
  bool has_header_ = false;
};

}  // namespace

bool names_tags(const std::vector<std::string_view>& fields) {
  return has_name(fields, kTagsNames);
}

std::string_view without_spaces(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

std::vector<std::string_view> split_at_spaces(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = 0;;) {
    at = text.find_first_not_of(' ', at);
    if (at == std::string_view::npos) return words;
    const size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
}

std::optional<float> number_in(std::string_view text) {
  text = without_spaces(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto narrow = static_cast<float>(value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(narrow))
    return std::nullopt;
  return narrow;
}

std::string shown_field(std::string_view field) {
  constexpr size_t kMost = 40;  // bytes
  std::string shown;
  size_t at = 0;
  for (; at < field.size(); ++at) {
    // Cut before a character, not inside one.
    if (at >= kMost && (static_cast<unsigned char>(field[at]) & 0xc0) != 0x80) break;
    const auto c = static_cast<unsigned char>(field[at]);
    shown += c < 0x20 || c == 0x7f ? ' ' : field[at];
  }
  return at < field.size() ? shown + "..." : shown;
}

LabelledColumns find_columns(const TsvTable& table, const LabelledFileOptions& options,
                             const std::string& name) {
  BRRR_CHECK(table.rows() > 0, "no rows");
  return ColumnFinder(table, options, name).find();
}

std::string describe(const LabelledColumns& columns, const TsvTable& table) {
  const auto column = [&](size_t c) {
    if (!columns.has_header) return fmt::format("column {}", c + 1);
    return fmt::format("{} '{}'", table.is_json ? "field" : "column", shown_field(table.at(0, c)));
  };
  return fmt::format(
      "{}; {} is the text{}, {} is the label{}",
      table.is_json        ? "each line is a JSON object"
      : columns.has_header ? fmt::format("line {} is a header", table.lines[0])
                           : "there is no header",
      column(columns.text),
      columns.text2 ? fmt::format(", {} the second text", column(*columns.text2)) : "",
      column(columns.label), columns.was_told ? "" : ", as the fields show");
}

}  // namespace brrr::io
