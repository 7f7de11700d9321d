#include "data/labelled/json_rows.h"

#include <algorithm>
#include <map>

#include "base/encoding/ascii.h"
#include "base/errors.h"
#include "data/packed/plain_text.h"
#include "data/packed/unpacked_file.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

using JsonRow = nlohmann::ordered_json;

constexpr size_t kMostFields = 1000;  // a table has room for each of them in each row

std::string_view without_blanks(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t begin = line.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(kBlanks) + 1 - begin);
}

bool is_plain(const JsonRow& value) {
  return value.is_string() || value.is_number() || value.is_boolean();
}

std::string text_of(const JsonRow& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string field_of(const JsonRow& value, const std::string& field, const std::string& where) {
  if (value.is_null()) return "";
  if (is_plain(value)) return text_of(value);
  const auto refuse = [&](const std::string& what) {
    user_error("{}: the field {} {}; expected a text, a number, or a list of words or numbers",
               where, in_quotes(field), what);
  };
  if (!value.is_array()) refuse("is " + describe(value));
  std::string joined;
  for (const JsonRow& element : value) {
    if (!is_plain(element)) refuse("holds " + describe(element));
    const std::string text = text_of(element);
    if (text.empty() || text.find(' ') != std::string::npos)
      refuse(fmt::format("holds {}, which is no word", in_quotes(text)));
    joined.append(joined.empty() ? "" : " ").append(text);
  }
  return joined;
}

}  // namespace

bool has_json_rows(std::string_view text, const std::string& path) {
  if (has_name_of_json_lines(path)) return true;
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || text[begin] != '{') return false;
  const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
  return JsonRow::accept(line.begin(), line.end());
}

TsvTable read_json_rows(std::string_view text, const std::string& name,
                        std::deque<std::string>& kept) {
  std::map<std::string, size_t, std::less<>> columns;
  std::vector<std::string> names;
  std::vector<std::vector<std::pair<size_t, std::string_view>>> rows;
  TsvTable table;
  table.is_json = true;
  int64_t number = 1;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = without_blanks(text.substr(at, end - at));
    at = end + 1;
    if (line.empty()) continue;
    const std::string where = fmt::format("{}: line {}", name, number);
    if (rows.empty() && line.front() == '[')
      user_error(
          "{}: expected a JSON object in each line; found an array: make lines of it, for example "
          "with jq -c '.[]' {} > rows.jsonl",
          where, name);
    const JsonRow row = parse_ordered_json(line, where);
    if (!row.is_object())
      user_error(
          "{}: expected a JSON object such as {{\"text\": \"...\", \"label\": \"...\"}}; "
          "found {}",
          where, describe(row));
    if (table.lines.empty()) table.lines.push_back(number);
    table.lines.push_back(number);
    auto& fields = rows.emplace_back();
    for (const auto& [field, value] : row.items()) {
      const auto [column, is_new] = columns.emplace(field, columns.size());
      if (is_new) names.push_back(field), table.problems.emplace_back();
      std::string& problem = table.problems[column->second];
      try {
        const std::string& made = kept.emplace_back(field_of(value, field, where));
        if (made.find('\0') != std::string::npos)
          user_error("{}: the field {} holds a NUL character; expected text", where, field);
        fields.emplace_back(column->second, made);
      } catch (const UserError& e) {
        if (problem.empty()) problem = e.what();
      }
    }
    if (names.size() > kMostFields)
      user_error("{}: there are more than {} different fields; expected the same in each line",
                 where, kMostFields);
  }
  table.columns = names.size();
  if (rows.empty()) return table;
  if (names.empty())
    user_error("{}: no line has a field; expected objects such as {{\"text\": \"...\"}}", name);
  constexpr size_t kMostCells = size_t{1} << 26;
  if (rows.size() > kMostCells / table.columns)
    user_error("{}: {} rows of {} different fields; expected the same few fields in each line",
               name, rows.size(), table.columns);
  table.fields.resize((rows.size() + 1) * table.columns);
  for (size_t c = 0; c < names.size(); ++c) table.fields[c] = kept.emplace_back(names[c]);
  for (size_t row = 0; row < rows.size(); ++row)
    for (const auto& [column, field] : rows[row])
      table.fields[(row + 1) * table.columns + column] = field;
  return table;
}

}  // namespace brrr::io
