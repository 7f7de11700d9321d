// Any bytes as a file of texts with labels, read in every way: a UserError, or rows that hold what
// they promise. The first bytes choose the options.
#include <string>
#include <string_view>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "data/labelled/labelled_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brrr;
  using namespace brrr::io;
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  LabelledFileOptions options;
  options.kind = static_cast<LabelKind>(data[0] % 3);
  options.header = static_cast<TsvHeader>(data[0] / 3 % 3);
  options.quoting = static_cast<Quoting>(data[0] / 9 % 3);
  const char* const columns[] = {"", "", "1", "2", "3", "text", "label"};
  options.text_column = columns[data[1] % 7];
  options.label_column = columns[data[1] / 7 % 7];
  const char* const names[] = {"input", "input.csv", "input.jsonl", "input.tsv"};
  const std::string name = names[data[0] / 27 % 4];
  if (data[1] >= 196) options.labels = {"a", "b"};
  try {
    const LabelledFile file = parse_labelled(text, name, options);
    BRRR_CHECK(!file.rows.empty() && file.kind == options.kind);
    const auto labels = static_cast<int32_t>(file.labels.size());
    int64_t line = 0;
    for (const LabelledRow& row : file.rows) {
      BRRR_CHECK(row.line > line, "line {} after {}", row.line, line);
      line = row.line;
      BRRR_CHECK(!find_invalid_utf8(row.text) && !find_invalid_utf8(row.text2));
      if (file.kind == LabelKind::kClasses) BRRR_CHECK(row.label >= 0 && row.label < labels);
      if (file.kind == LabelKind::kValues)
        BRRR_CHECK(static_cast<int64_t>(row.values.size()) == file.values_per_row);
      BRRR_CHECK(row.words.size() == row.tags.size());
      BRRR_CHECK(row.words.empty() == (file.kind != LabelKind::kTags));
      for (const int32_t tag : row.tags) BRRR_CHECK(tag >= 0 && tag < labels);
    }
    // The labels of a file are those of its rows, so that they read it again.
    options.labels = file.labels;
    BRRR_CHECK(parse_labelled(text, name, options).rows.size() == file.rows.size());
    const size_t rows = file.rows.size();
    if (rows >= 2) {
      const LabelledSplit split = hold_out(file, 0.5);
      BRRR_CHECK(split.train.rows.size() + split.validation.rows.size() == rows);
    }
  } catch (const UserError&) {
  }
  return 0;
}
