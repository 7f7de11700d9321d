#include "data/labelled/labelled_file.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "base/human.h"
#include "data/corpus.h"
#include "data/hold_out.h"
#include "data/labelled/json_rows.h"
#include "data/labelled/labelled_columns.h"
#include "data/packed/unpacked_file.h"

namespace brrr::io {
namespace {

void check_labelled_text(std::string_view text, const std::string& name) {
  check_not_binary(text.substr(0, kSniffBytes), name, false);
  const auto place = [&](size_t at) {
    const std::string_view before = text.substr(0, at);
    const size_t begin = before.find_last_of('\n') + 1;  // npos + 1 is 0
    return fmt::format("line {}, byte {}", 1 + std::count(before.begin(), before.end(), '\n'),
                       at - begin + 1);
  };
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    user_error("{}: {} is NUL, so this is not text; name a text file", name, place(nul));
  if (const auto at = find_invalid_utf8(text))
    user_error(
        "{}: {} (0x{:02x}) is not UTF-8; convert the file (for Latin-1: iconv -f LATIN1 -t "
        "UTF-8)",
        name, place(*at), static_cast<unsigned char>(text[*at]));
}

// ---- names of labels

std::optional<int64_t> integer_in(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// As integers where all are, else by code point, which is the order of UTF-8's bytes.
std::vector<std::string> sorted_labels(const std::set<std::string_view>& labels) {
  std::vector<std::string> sorted(labels.begin(), labels.end());
  if (std::all_of(sorted.begin(), sorted.end(), integer_in))
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return *integer_in(a) < *integer_in(b); });
  return sorted;
}

/// The beginning of a list of labels, each in quotes.
std::string quoted(const std::vector<std::string>& labels) {
  std::vector<std::string> shown;
  for (const std::string& label : labels) shown.push_back("'" + shown_field(label) + "'");
  return listed(shown);
}

/// The ids of labels: of those that are given, or of all that the file has.
class LabelIds {
 public:
  LabelIds(std::vector<std::string> labels, std::string name)
      : labels_(std::move(labels)), name_(std::move(name)), examples_(labels_.size()) {
    for (size_t i = 0; i < labels_.size(); ++i)
      if (!ids_.emplace(labels_[i], static_cast<int32_t>(i)).second)
        user_error("the label '{}' was given twice; expected different labels", labels_[i]);
  }

  LabelIds(const LabelIds&) = delete;
  LabelIds& operator=(const LabelIds&) = delete;

  int32_t id(std::string_view label, int64_t line) {
    const auto found = ids_.find(label);
    if (found == ids_.end())
      user_error("{}: line {}: '{}' is not one of the labels: {}", name_, line, shown_field(label),
                 quoted(labels_));
    ++examples_[static_cast<size_t>(found->second)];
    return found->second;
  }

  /// Says which labels have no example.
  void note_missing(std::vector<std::string>& notes) const {
    std::vector<std::string> missing;
    for (size_t i = 0; i < labels_.size(); ++i)
      if (examples_[i] == 0) missing.push_back(labels_[i]);
    if (!missing.empty())
      notes.push_back(fmt::format("no example has the label{} {}", missing.size() == 1 ? "" : "s",
                                  quoted(missing)));
  }

  std::vector<std::string> take() { return std::move(labels_); }

 private:
  std::vector<std::string> labels_;
  std::string name_;
  std::vector<int64_t> examples_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views of labels_
};

/// Says which labels only the rows for validation have.
void note_untrained(LabelledSplit& split) {
  const auto has = [&](const LabelledFile& file) {
    std::vector<bool> found(file.labels.size());
    for (const LabelledRow& row : file.rows) {
      if (row.label >= 0) found[static_cast<size_t>(row.label)] = true;
      for (const int32_t tag : row.tags) found[static_cast<size_t>(tag)] = true;
    }
    return found;
  };
  const std::vector<bool> trained = has(split.train), evaluated = has(split.validation);
  std::vector<std::string> untrained;
  for (size_t i = 0; i < trained.size(); ++i)
    if (evaluated[i] && !trained[i]) untrained.push_back(split.train.labels[i]);
  if (!untrained.empty())
    split.train.notes.push_back(
        fmt::format("all examples of the label{} {} are held out for validation",
                    untrained.size() == 1 ? "" : "s", quoted(untrained)));
}

// ---- rows of fields

/// The rows of a table behind its header.
struct LabelledTable {
  const TsvTable& table;
  LabelledColumns columns;
  const LabelledFileOptions& options;

  size_t first() const { return columns.has_header ? 1 : 0; }
  std::string_view label(size_t row) const { return without_spaces(table.at(row, columns.label)); }
  std::string_view text(size_t row) const { return table.at(row, columns.text); }
};

/// A header whose names are not known would be an example of a class of its own: a label that only
/// the first line has, where every other has several, is refused.
void check_first_line(const LabelledTable& t, const std::string& name) {
  constexpr size_t kEnoughRows = 5;
  if (t.columns.has_header || t.options.header == TsvHeader::kNo || t.table.rows() < kEnoughRows)
    return;
  std::map<std::string_view, int64_t> examples;
  for (size_t row = 0; row < t.table.rows(); ++row) ++examples[t.label(row)];
  const int64_t alone = std::count_if(examples.begin(), examples.end(),
                                      [](const auto& entry) { return entry.second == 1; });
  if (alone == 1 && examples[t.label(0)] == 1)
    user_error(
        "{}: line {}: no other line has the label '{}'; pass --header yes if this line is a "
        "header, --header no if it is an example",
        name, t.table.lines[0], shown_field(t.label(0)));
}

/// Whether labels look like measurements: numbers of more values than classes usually have.
bool are_ratings(const std::set<std::string_view>& labels) {
  constexpr size_t kManyFractions = 10, kManyIntegers = 100;
  if (!std::all_of(labels.begin(), labels.end(), number_in)) return false;
  const bool are_integers = std::all_of(labels.begin(), labels.end(), integer_in);
  return labels.size() > (are_integers ? kManyIntegers : kManyFractions);
}

/// A wrong column would give a model with a class for each row.
void refuse_odd_labels(const std::set<std::string_view>& names, const LabelledFile& file) {
  constexpr size_t kEnoughRows = 10;
  const std::string force = "to learn each as a class of its own all the same, pass --any-labels";
  const auto count = with_commas(static_cast<int64_t>(names.size()));
  if (are_ratings(names))
    user_error(
        "{}: the labels are {} different numbers, such as '{}': --task regress learns to predict "
        "numbers; {}",
        file.name, count, shown_field(*names.begin()), force);
  if (file.rows.size() >= kEnoughRows && names.size() > file.rows.size() / 2)
    user_error(
        "{}: {} have {} different labels, such as '{}', as ids have: name the column of the "
        "classes with --label-column; {}",
        file.name, counted(static_cast<int64_t>(file.rows.size()), "row"), count,
        shown_field(*names.begin()), force);
}

void read_classes(const LabelledTable& t, LabelledFile& file) {
  std::set<std::string_view> names;
  for (size_t row = t.first(); row < t.table.rows(); ++row) {
    if (t.label(row).empty())
      user_error("{}: line {}: the label is empty; expected the name of a class", file.name,
                 t.table.lines[row]);
    names.insert(t.label(row));
  }
  LabelIds ids(t.options.labels.empty() ? sorted_labels(names) : t.options.labels, file.name);
  for (size_t row = t.first(); row < t.table.rows(); ++row)
    file.rows[row - t.first()].label = ids.id(t.label(row), t.table.lines[row]);
  if (t.options.labels.empty()) check_first_line(t, file.name);
  if (t.options.labels.empty() && !t.options.any_labels) refuse_odd_labels(names, file);
  ids.note_missing(file.notes);
  file.labels = ids.take();
}

void read_values(const LabelledTable& t, LabelledFile& file) {
  for (size_t row = t.first(); row < t.table.rows(); ++row) {
    std::vector<float>& values = file.rows[row - t.first()].values;
    for (const std::string_view word : split_at_spaces(t.label(row))) {
      const auto value = number_in(word);
      if (!value)
        user_error("{}: line {}: expected a number as the label; found '{}'{}", file.name,
                   t.table.lines[row], shown_field(t.label(row)),
                   row == 0 && t.options.header == TsvHeader::kAuto
                       ? "; if this line is a header, pass --header yes"
                       : "");
      values.push_back(*value);
    }
    const auto count = static_cast<int64_t>(values.size());
    if (row == t.first()) file.values_per_row = count;
    if (count == 0 || count != file.values_per_row)
      user_error(
          "{}: line {}: expected {} as the label, as in the first row; found {}", file.name,
          t.table.lines[row],
          file.values_per_row < 2 ? "a number" : fmt::format("{} numbers", file.values_per_row),
          count);
  }
}

/// The ids of tags: `tags[i]` are those of row i.
void set_tags(const std::vector<std::vector<std::string_view>>& tags,
              const LabelledFileOptions& options, LabelledFile& file,
              const std::vector<std::vector<int64_t>>& lines) {
  std::set<std::string_view> names;
  for (const auto& row : tags) names.insert(row.begin(), row.end());
  LabelIds ids(options.labels.empty() ? sorted_labels(names) : options.labels, file.name);
  for (size_t row = 0; row < tags.size(); ++row)
    for (size_t i = 0; i < tags[row].size(); ++i)
      file.rows[row].tags.push_back(
          ids.id(tags[row][i], lines.empty() ? file.rows[row].line : lines[row][i]));
  ids.note_missing(file.notes);
  file.labels = ids.take();
}

void read_tagged_rows(const LabelledTable& t, LabelledFile& file) {
  std::vector<std::vector<std::string_view>> tags;
  for (size_t row = t.first(); row < t.table.rows(); ++row) {
    const auto words = split_at_spaces(t.text(row));
    tags.push_back(split_at_spaces(t.label(row)));
    if (words.empty() || words.size() != tags.back().size())
      user_error("{}: line {}: {} and {}, separated by spaces; expected a tag for each word",
                 file.name, t.table.lines[row], counted(static_cast<int64_t>(words.size()), "word"),
                 counted(static_cast<int64_t>(tags.back().size()), "tag"));
    file.rows[row - t.first()].words.assign(words.begin(), words.end());
  }
  set_tags(tags, t.options, file, {});
}

/// Says what is odd about the rows of a file with fields.
void note_oddities(const TsvReader& reader, LabelledFile& file) {
  if (reader.empty_lines() > 0)
    file.notes.push_back(
        fmt::format("{} left out", reader.empty_lines() == 1
                                       ? "1 empty line was"
                                       : fmt::format("{} empty lines were", reader.empty_lines())));
  if (reader.plain_quotes() > 0)
    file.notes.push_back(fmt::format(
        "{} with a double quote that is not closed at its end, the first in line {}: such quotes "
        "are read as part of the text (change this with --quoting csv)",
        reader.plain_quotes() == 1 ? "1 field begins"
                                   : fmt::format("{} fields begin", reader.plain_quotes()),
        reader.first_plain_quote()));
}

void read_table_rows(const TsvTable& table, const LabelledFileOptions& options,
                     LabelledFile& file) {
  if (table.rows() == 0) user_error("{} has no rows; expected texts with their labels", file.name);
  const LabelledTable t{table, find_columns(table, options, file.name), options};
  if (t.first() == table.rows())
    user_error("{} has a header and no rows; expected texts with their labels", file.name);
  file.has_pairs = t.columns.text2.has_value();
  file.rows.resize(table.rows() - t.first());
  int64_t empty_texts = 0;
  for (size_t row = t.first(); row < table.rows(); ++row) {
    LabelledRow& to = file.rows[row - t.first()];
    to.line = table.lines[row];
    if (options.kind == LabelKind::kTags) continue;
    to.text = t.text(row);
    if (file.has_pairs) to.text2 = table.at(row, *t.columns.text2);
    empty_texts += without_spaces(to.text).empty();
  }
  file.notes.push_back(fmt::format("{}: {}", file.name, describe(t.columns, table)));
  if (options.kind == LabelKind::kClasses) read_classes(t, file);
  if (options.kind == LabelKind::kValues) read_values(t, file);
  if (options.kind == LabelKind::kTags) read_tagged_rows(t, file);
  if (empty_texts > 0)
    file.notes.push_back(fmt::format(
        "{} empty", empty_texts == 1 ? "1 text is" : fmt::format("{} texts are", empty_texts)));
}

void read_rows(std::string_view text, char separator, const LabelledFileOptions& options,
               LabelledFile& file) {
  // Words are apart from the quotes around them, which would look like quoted fields.
  const bool are_plain =
      options.kind == LabelKind::kTags && options.quoting == Quoting::kAuto && separator == '\t';
  TsvReader reader(text, file.name, are_plain ? Quoting::kNone : options.quoting, separator);
  read_table_rows(read_table(reader, file.name), options, file);
  note_oddities(reader, file);
}

void read_json(std::string_view text, LabelledFileOptions options, LabelledFile& file) {
  std::deque<std::string> kept;
  options.header = TsvHeader::kYes;
  read_table_rows(read_json_rows(text, file.name, kept), options, file);
}

// ---- a token and its tag a line

/// The lines of a text and their numbers, without what ends them.
template <typename Visit>
void each_text_line(std::string_view text, Visit&& visit) {
  int64_t number = 1;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    visit(line, number);
    at = end + 1;
  }
}

std::vector<std::string_view> split_at_tabs(std::string_view line) {
  std::vector<std::string_view> fields;
  for (size_t at = 0; at <= line.size();) {
    const size_t end = std::min(line.find('\t', at), line.size());
    fields.push_back(without_spaces(line.substr(at, end - at)));
    at = end + 1;
  }
  return fields;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t") == std::string_view::npos;
}

/// Rows of words and of tags have spaces inside their fields, or a header; files in the manner of
/// CoNLL have neither.
bool has_tagged_rows(std::string_view text, const LabelledFileOptions& options) {
  if (options.header == TsvHeader::kYes || !options.text_column.empty() ||
      !options.label_column.empty())
    return true;
  bool is_first = true, has_rows = false;
  each_text_line(text, [&](std::string_view line, int64_t) {
    if (is_blank(line) || line.find('\t') == std::string_view::npos) return;
    const auto fields = split_at_tabs(line);
    has_rows = has_rows || std::any_of(fields.begin(), fields.end(), [](std::string_view field) {
                 return field.find(' ') != std::string_view::npos;
               });
    if (std::exchange(is_first, false) && options.header == TsvHeader::kAuto)
      has_rows = has_rows || names_tags(fields);
  });
  return has_rows;
}

void read_token_lines(std::string_view text, const LabelledFileOptions& options,
                      LabelledFile& file) {
  std::vector<std::vector<std::string_view>> tags;
  std::vector<std::vector<int64_t>> lines;
  size_t columns = 0;
  bool inside = false;  // a sentence
  each_text_line(text, [&](std::string_view line, int64_t number) {
    if (is_blank(line) || line.starts_with("-DOCSTART-")) {
      inside = false;
      return;
    }
    const auto fields =
        line.find('\t') == std::string_view::npos ? split_at_spaces(line) : split_at_tabs(line);
    if (columns == 0) columns = fields.size();
    if (fields.size() < 2 || fields.size() != columns)
      user_error("{}: line {}: expected a token and its tag, {}; found {}", file.name, number,
                 columns < 2 ? "separated by a tab or a space"
                             : fmt::format("in {} columns as in the first line", columns),
                 counted(static_cast<int64_t>(fields.size()), "column"));
    if (fields.front().empty() || fields.back().empty())
      user_error("{}: line {}: the {} is empty; expected a token and its tag", file.name, number,
                 fields.front().empty() ? "token" : "tag");
    if (!std::exchange(inside, true)) {
      file.rows.emplace_back().line = number;
      tags.emplace_back();
      lines.emplace_back();
    }
    file.rows.back().words.emplace_back(fields.front());
    tags.back().push_back(fields.back());
    lines.back().push_back(number);
  });
  if (file.rows.empty())
    user_error("{} has no rows; expected a token and its tag on each line", file.name);
  file.notes.push_back(fmt::format("{}: a token and its tag on each line, {}", file.name,
                                   counted(static_cast<int64_t>(file.rows.size()), "sentence")));
  set_tags(tags, options, file, lines);
}

}  // namespace

TsvHeader header_from_name(std::string_view name) {
  if (name == "auto") return TsvHeader::kAuto;
  if (name == "yes") return TsvHeader::kYes;
  if (name == "no") return TsvHeader::kNo;
  usage_error("unknown header '{}': expected auto, yes or no", name);
}

LabelledFile parse_labelled(std::string_view text, const std::string& name,
                            const LabelledFileOptions& options) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // Excel's byte order mark
  check_labelled_text(text, name);
  LabelledFile file;
  file.name = name;
  file.kind = options.kind;
  if (has_json_rows(text, name)) {
    read_json(text, options, file);
    return file;
  }
  // Commas and semicolons are words, too: only a name says that they separate fields of tags.
  const bool may_be_csv = options.kind != LabelKind::kTags || has_name_of_csv(name);
  const char separator = may_be_csv ? separator_of(text, name, options.quoting) : '\t';
  if (options.kind == LabelKind::kTags && separator == '\t' && !has_tagged_rows(text, options))
    read_token_lines(text, options, file);
  else
    read_rows(text, separator, options, file);
  return file;
}

LabelledFile read_labelled_file(const std::filesystem::path& path,
                                const LabelledFileOptions& options) {
  return parse_labelled(read_unpacked(path, kLargestLabelledFile), path.string(), options);
}

LabelledFile read_labelled_file_like(const LabelledFile& like, const std::filesystem::path& path,
                                     LabelledFileOptions options) {
  options.kind = like.kind;
  options.labels = like.labels;
  LabelledFile file = read_labelled_file(path, options);
  if (file.has_pairs != like.has_pairs)
    user_error("{} has {}, but {} has {}; expected the same in both", file.name,
               file.has_pairs ? "pairs of texts" : "single texts", like.name,
               like.has_pairs ? "pairs of texts" : "single texts");
  if (file.values_per_row != like.values_per_row)
    user_error("{} has {} in each row, but {} has {}; expected the same in both", file.name,
               counted(file.values_per_row, "number"), like.name, like.values_per_row);
  return file;
}

LabelledSplit hold_out(LabelledFile file, double fraction) {
  if (!(fraction >= 0 && fraction <= 0.5))
    usage_error("{} of the rows for validation; expected 0 to 0.5", fraction);
  const HeldOutRows held_out(fraction);
  if (fraction > 0 && held_out.every() > std::ssize(file.rows))
    user_error(
        "{} has {}; every {}-th is for validation, so at least that many are needed: hold out a "
        "larger fraction, or name a second file",
        file.name, counted(std::ssize(file.rows), "row"), held_out.every());
  auto rows = held_out.split(std::move(file.rows));
  file.rows.clear();
  LabelledSplit split{file, file};
  split.validation.notes.clear();
  split.train.rows = std::move(rows.train);
  split.validation.rows = std::move(rows.validation);
  note_untrained(split);
  return split;
}

}  // namespace brrr::io
