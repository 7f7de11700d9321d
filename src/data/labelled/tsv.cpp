#include "data/labelled/tsv.h"

#include <algorithm>
#include <utility>

#include "base/encoding/ascii.h"
#include "base/errors.h"
#include "base/human.h"
#include "data/packed/unpacked_file.h"

namespace brrr::io {
namespace {

constexpr struct {
  Quoting quoting;
  std::string_view name;
} kQuotings[] = {{Quoting::kAuto, "auto"}, {Quoting::kCsv, "csv"}, {Quoting::kNone, "none"}};

std::string ending_of(const std::string& path) {
  return ascii_lowercase(unpacked_name(path).extension().string());
}

/// Columns at the end that no row fills: files whose lines end with a separator have one.
void drop_empty_columns(TsvTable& table) {
  const auto is_empty = [&](size_t column) {
    for (size_t row = 0; row < table.rows(); ++row)
      if (!table.at(row, column).empty()) return false;
    return true;
  };
  size_t columns = table.columns;
  while (columns > 1 && is_empty(columns - 1)) --columns;
  if (columns == table.columns) return;
  std::vector<std::string_view> fields;
  fields.reserve(columns * table.rows());
  for (size_t row = 0; row < table.rows(); ++row)
    for (size_t c = 0; c < columns; ++c) fields.push_back(table.at(row, c));
  table.fields = std::move(fields);
  table.columns = columns;
}

std::string_view first_line_of(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of("\r\n"), text.size());
  return text.substr(begin, text.find_first_of("\r\n", begin) - begin);
}

/// How much the first rows look like a table.
struct Likeness {
  size_t columns = 0;          // of the first row
  size_t rows = 0, alike = 0;  // looked at, and of them with as many
};

Likeness likeness_of(std::string_view text, Quoting quoting, char separator) {
  constexpr size_t kLookedAtRows = 50;
  Likeness found;
  TsvReader reader(text, "", quoting, separator);
  std::vector<std::string_view> fields;
  try {
    while (found.rows < kLookedAtRows && reader.next(fields)) {
      if (found.rows++ == 0) found.columns = fields.size();
      found.alike += fields.size() == found.columns;
    }
  } catch (const UserError&) {  // an open quote: what came before it counts
  }
  return found;
}

}  // namespace

std::string_view name_of(Quoting quoting) {
  for (const auto& entry : kQuotings)
    if (entry.quoting == quoting) return entry.name;
  return "unknown";
}

Quoting quoting_from_name(std::string_view name) {
  for (const auto& entry : kQuotings)
    if (entry.name == name) return entry.quoting;
  usage_error("unknown quoting '{}': expected auto, csv or none", name);
}

TsvReader::TsvReader(std::string_view text, std::string name, Quoting quoting, char separator)
    : text_(text), name_(std::move(name)), quoting_(quoting), separator_(separator) {
  // Quotes are what commas and line ends inside of fields stand in: there is no other kind.
  if (separator != '\t' && quoting == Quoting::kAuto) quoting_ = Quoting::kCsv;
}

bool TsvReader::at_end_of_line() const {
  if (at_ == text_.size() || text_[at_] == '\n') return true;
  return text_[at_] == '\r' &&
         (separator_ != '\t' || at_ + 1 == text_.size() || text_[at_ + 1] == '\n');
}

void TsvReader::skip_end_of_line() {
  if (at_ == text_.size()) return;
  if (text_[at_] == '\r') ++at_;
  if (at_ < text_.size() && text_[at_] == '\n') ++at_;
  ++line_;
}

std::string_view TsvReader::keep(std::string text) { return kept_.emplace_back(std::move(text)); }

std::string_view TsvReader::plain_field() {
  const size_t begin = at_;
  for (;;) {
    const char ends[] = {separator_, '\r', '\n'};
    at_ = std::min(text_.find_first_of(std::string_view(ends, sizeof ends), at_), text_.size());
    if (at_ == text_.size() || text_[at_] == separator_ || at_end_of_line()) break;
    ++at_;  // a carriage return inside a line
  }
  return text_.substr(begin, at_ - begin);
}

/// Whether the field at the place is quoted within its line; reads it then.
bool TsvReader::quoted_field_of_line(std::string_view& field) {
  const size_t begin = at_;
  std::string content;
  for (size_t from = begin + 1;;) {
    const size_t quote = text_.find_first_of("\"\n", from);
    if (quote == std::string_view::npos || text_[quote] == '\n') break;
    content += text_.substr(from, quote - from);
    at_ = quote + 1;
    if (at_ < text_.size() && text_[at_] == '"') {
      content += '"';
      from = at_ + 1;
      continue;
    }
    if (!at_end_of_line() && text_[at_] != separator_) break;
    field = keep(std::move(content));
    return true;
  }
  at_ = begin;
  return false;
}

std::string_view TsvReader::quoted_field() {
  const int64_t first_line = line_;
  std::string content;
  for (++at_;;) {
    const size_t quote = text_.find('"', at_);
    if (quote == std::string_view::npos)
      user_error(
          "{}: line {}: the quote that opens a field here is never closed; close it, or pass "
          "--quoting none if quotes are part of the texts",
          name_, first_line);
    const std::string_view part = text_.substr(at_, quote - at_);
    line_ += std::count(part.begin(), part.end(), '\n');
    content += part;
    at_ = quote + 1;
    if (at_ == text_.size() || text_[at_] != '"') break;
    content += '"';
    ++at_;
  }
  content += plain_field();
  return keep(std::move(content));
}

std::string_view TsvReader::field() {
  if (quoting_ == Quoting::kNone || at_ == text_.size() || text_[at_] != '"') return plain_field();
  if (quoting_ == Quoting::kCsv) return quoted_field();
  std::string_view quoted;
  if (quoted_field_of_line(quoted)) return quoted;
  if (plain_quotes_++ == 0) first_plain_quote_ = line_;
  return plain_field();
}

bool TsvReader::next(std::vector<std::string_view>& fields) {
  fields.clear();
  for (;;) {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (!at_end_of_line()) {
      at_ = begin;
      break;
    }
    if (at_ == text_.size()) return false;
    skip_end_of_line();
    ++empty_lines_;
  }
  row_line_ = line_;
  for (;;) {
    fields.push_back(field());
    if (at_end_of_line()) break;
    ++at_;  // the separator
  }
  skip_end_of_line();
  return true;
}

std::string_view name_of_separator(char separator) {
  return separator == ',' ? "commas" : separator == ';' ? "semicolons" : "tabs";
}

TsvTable read_table(TsvReader& reader, const std::string& name) {
  TsvTable table;
  std::vector<std::string_view> fields;
  constexpr size_t kMostAbsent = size_t{1} << 24;  // fields that short rows leave out
  size_t absent = 0;
  const bool pads = reader.separator() != '\t';
  while (reader.next(fields)) {
    if (table.columns == 0) table.columns = fields.size();
    while (fields.size() > table.columns && fields.back().empty()) fields.pop_back();
    if (fields.size() < table.columns && pads) {
      absent += table.columns - fields.size();
      if (absent > kMostAbsent)
        user_error("{}: line {}: the rows lack more than {} of the {} columns that the first has",
                   name, reader.line(), kMostAbsent, table.columns);
      fields.resize(table.columns);
    }
    if (fields.size() != table.columns) {
      const bool quotes = reader.plain_quotes() > 0;
      user_error("{}: line {}: found {}, expected {} as in the first row, separated by {}{}", name,
                 reader.line(), counted(static_cast<int64_t>(fields.size()), "column"),
                 table.columns, name_of_separator(reader.separator()),
                 quotes ? fmt::format("; line {} opens a quote without closing it: pass --quoting "
                                      "csv if fields span lines",
                                      reader.first_plain_quote())
                 : pads ? "; a text that holds the separator needs quotes around it"
                        : "");
    }
    table.fields.insert(table.fields.end(), fields.begin(), fields.end());
    table.lines.push_back(reader.line());
  }
  drop_empty_columns(table);
  return table;
}

bool has_name_of_csv(const std::string& path) { return ending_of(path) == ".csv"; }

char separator_of(std::string_view text, const std::string& path, Quoting quoting) {
  const std::string ending = ending_of(path);
  if (ending == ".tsv" || ending == ".tab") return '\t';
  const bool is_csv = has_name_of_csv(path);
  if (!is_csv && first_line_of(text).find('\t') != std::string_view::npos) return '\t';
  // The separator by which the most rows have as many fields as the first, two or more.
  Likeness best;
  char separator = is_csv ? ',' : '\t';
  for (const char candidate : {',', ';', '\t'}) {
    const Likeness found = likeness_of(text, quoting, candidate);
    if (found.columns < 2 || (!is_csv && found.alike < found.rows)) continue;
    if (std::pair(found.alike, found.columns) <= std::pair(best.alike, best.columns)) continue;
    best = found;
    separator = candidate;
  }
  return separator;
}

}  // namespace brrr::io
