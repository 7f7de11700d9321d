#include "data/labelled/tsv.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/human.h"

namespace brrr::io {
namespace {

constexpr struct {
  Quoting quoting;
  std::string_view name;
} kQuotings[] = {{Quoting::kAuto, "auto"}, {Quoting::kCsv, "csv"}, {Quoting::kNone, "none"}};

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

TsvReader::TsvReader(std::string_view text, std::string name, Quoting quoting)
    : text_(text), name_(std::move(name)), quoting_(quoting) {}

bool TsvReader::at_end_of_line() const {
  if (at_ == text_.size() || text_[at_] == '\n') return true;
  return text_[at_] == '\r' && (at_ + 1 == text_.size() || text_[at_ + 1] == '\n');
}

void TsvReader::skip_end_of_line() {
  if (at_ < text_.size() && text_[at_] == '\r') ++at_;
  if (at_ < text_.size()) ++at_, ++line_;
}

std::string_view TsvReader::keep(std::string text) { return kept_.emplace_back(std::move(text)); }

std::string_view TsvReader::plain_field() {
  const size_t begin = at_;
  for (;;) {
    at_ = std::min(text_.find_first_of("\t\r\n", at_), text_.size());
    if (at_ == text_.size() || text_[at_] == '\t' || at_end_of_line()) break;
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
    if (!at_end_of_line() && text_[at_] != '\t') break;
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
    ++at_;  // the tab
  }
  skip_end_of_line();
  return true;
}

TsvTable read_table(TsvReader& reader, const std::string& name) {
  TsvTable table;
  std::vector<std::string_view> fields;
  while (reader.next(fields)) {
    if (table.columns == 0) table.columns = fields.size();
    if (fields.size() != table.columns) {
      const bool quotes = reader.plain_quotes() > 0;
      user_error("{}: line {}: found {}, expected {} as in the first row, separated by tabs{}",
                 name, reader.line(), counted(static_cast<int64_t>(fields.size()), "column"),
                 table.columns,
                 quotes ? fmt::format("; line {} opens a quote without closing it: pass --quoting "
                                      "csv if fields span lines",
                                      reader.first_plain_quote())
                        : "");
    }
    table.fields.insert(table.fields.end(), fields.begin(), fields.end());
    table.lines.push_back(reader.line());
  }
  return table;
}

}  // namespace brrr::io
