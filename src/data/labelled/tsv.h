#pragma once
// Fields separated by tabs, commas or semicolons, one row a line. Lines end with "\n" or "\r\n",
// where commas or semicolons separate fields also with "\r"; empty lines and lines of spaces are
// left out. What double quotes mean is a choice, because both kinds of files exist: those that a
// spreadsheet or pandas wrote, and plain ones whose texts begin with a quote.
//
//   kAuto  A field is quoted when its first character is a quote and the quote that closes it (one
//          that is not doubled) ends the field in the same line. All other quotes are text. So a
//          row is always one line: no quote can swallow the lines after it.
//   kCsv   As pandas, Hugging Face's `csv` loader and Python's csv module read it: a field whose
//          first character is a quote goes on to the quote that closes it, over tabs and ends of
//          lines; "" in it is one quote. What follows the closing quote belongs to the field, as
//          it is. A quote that is never closed is an error.
//   kNone  Quotes are text.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::io {

enum class Quoting { kAuto, kCsv, kNone };

std::string_view name_of(Quoting quoting);
/// "auto", "csv", "none". Throws UserError (usage) for another name.
Quoting quoting_from_name(std::string_view name);

/// Reads rows one after the other. Fields are views of the text, or of what the reader holds where
/// quotes were taken away: both must outlive them.
class TsvReader {
 public:
  /// `name` stands for the text in messages. `text` is UTF-8 (check_labelled_text).
  TsvReader(std::string_view text, std::string name, Quoting quoting, char separator = '\t');

  /// The next row, with at least one field; false at the end. Throws UserError for a quote that is
  /// not closed.
  bool next(std::vector<std::string_view>& fields);
  /// The number of the first line of the last row, from 1.
  int64_t line() const { return row_line_; }

  int64_t empty_lines() const { return empty_lines_; }
  /// kAuto: fields that begin with a quote which is text, and the line of the first of them.
  int64_t plain_quotes() const { return plain_quotes_; }
  int64_t first_plain_quote() const { return first_plain_quote_; }
  char separator() const { return separator_; }

 private:
  std::string_view field();
  std::string_view plain_field();
  bool quoted_field_of_line(std::string_view& field);
  std::string_view quoted_field();
  bool at_end_of_line() const;
  void skip_end_of_line();
  std::string_view keep(std::string text);

  std::string_view text_;
  std::string name_;
  Quoting quoting_;
  char separator_;
  size_t at_ = 0;
  int64_t line_ = 1, row_line_ = 0;
  int64_t empty_lines_ = 0, plain_quotes_ = 0, first_plain_quote_ = 0;
  std::deque<std::string> kept_;
};

/// Rows that all have the same number of fields, laid one after the other.
struct TsvTable {
  size_t columns = 0;
  std::vector<std::string_view> fields;
  std::vector<int64_t> lines;  // where each row begins
  bool is_json = false;        // the rows are JSON objects; the first has the names of their fields
  /// For each column of JSON rows, why it cannot be read; "" if it can.
  std::vector<std::string> problems = {};

  size_t rows() const { return lines.size(); }
  std::string_view at(size_t row, size_t column) const { return fields[row * columns + column]; }
};

/// "tabs", "commas", "semicolons".
std::string_view name_of_separator(char separator);

/// All rows. Columns at the end that are empty in every row are left out, and so are empty fields
/// behind the last column. As pandas does, rows of fields between commas or semicolons that are too
/// short get empty fields. Throws UserError, with the line and both numbers, where a row otherwise
/// has more or fewer fields than the first.
TsvTable read_table(TsvReader& reader, const std::string& name);

/// Whether a name ends in .csv, packed or not.
bool has_name_of_csv(const std::string& path);

/// What separates the fields of a text: what the ending of `path` says (.tsv, .csv), and what the
/// first rows are like: tabs, or else what all of them have alike.
char separator_of(std::string_view text, const std::string& path, Quoting quoting);

}  // namespace brrr::io
