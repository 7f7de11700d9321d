// Files of fields between commas and semicolons, JSON lines and packed files with labels: what
// Python's csv module and pandas read, Brrr reads.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "data/labelled/labelled_file.h"
#include "formats/json_file.h"
#include "support/packed.h"
#include "support/random_text.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using Strings = std::vector<std::string>;

Strings csv_texts_of(const LabelledFile& file) {
  Strings texts;
  for (const LabelledRow& row : file.rows)
    texts.push_back(file.has_pairs ? row.text + "|" + row.text2 : row.text);
  return texts;
}
Strings csv_labels_of(const LabelledFile& file) {
  Strings labels;
  for (const LabelledRow& row : file.rows)
    labels.push_back(file.labels[static_cast<size_t>(row.label)]);
  return labels;
}

// tests/golden/make_csv_goldens.py: what pandas reads.
TEST(Csv, FilesAreReadAsPandasReadsThem) {
  const std::string path = std::string(BRRR_SOURCE_DIR) + "/tests/golden/csv_tables.json";
  for (const Json& table : parse_json(read_file(path), path)) {
    const std::string name = table["name"];
    const LabelledFile file = parse_labelled(table["content"].get<std::string>(), name, {});
    EXPECT_EQ(csv_texts_of(file), table["texts"].get<Strings>()) << name;
    EXPECT_EQ(csv_labels_of(file), table["labels"].get<Strings>()) << name;
  }
}

/// text_of of make_csv_goldens.py, letter for letter.
std::string random_csv(uint32_t index, char separator) {
  const std::string s(1, separator);
  const std::string pieces[] = {"\"",   "\"", "\"\"", s,     s,   "\n",
                                "\r\n", "\r", "a",    "b c", "é", "\t"};
  RngStream words({test::kTextSeed, 0}, index);
  std::string text;
  for (uint32_t left = 1 + words.next_u32() % 30; left > 0; --left)
    text += pieces[words.next_u32() % std::size(pieces)];
  return text;
}

uint64_t hash_of_csv(char separator, int* open_quotes) {
  uint64_t hash = test::kHashStart;
  for (uint32_t index = 0; index < 20'000; ++index) {
    const std::string text = random_csv(index, separator);
    std::vector<Strings> rows;
    try {
      TsvReader reader(text, "f.csv", Quoting::kAuto, separator);
      std::vector<std::string_view> fields;
      while (reader.next(fields)) rows.emplace_back(fields.begin(), fields.end());
    } catch (const UserError&) {
      ++*open_quotes;
      hash = test::fnv(hash, 0xFFFFFFFD);
      continue;
    }
    for (const Strings& row : rows) {
      for (const std::string& field : row) hash = test::hash_text(hash, field);
      hash = test::fnv(hash, 0xFFFFFFFE);
    }
  }
  return hash;
}

// The script prints these numbers: Python's csv module, compared with pandas.
TEST(Csv, RandomTextsAreReadAsPythonReadsThem) {
  int open_quotes = 0;
  EXPECT_EQ(hash_of_csv(',', &open_quotes), 0xebf13293f419665fu);
  EXPECT_EQ(open_quotes, 6708);
  open_quotes = 0;
  EXPECT_EQ(hash_of_csv(';', &open_quotes), 0x74c05929f3457a1bu);
  EXPECT_EQ(open_quotes, 6708);
}

TEST(Csv, WhatSeparatesFieldsIsToldByNameAndContent) {
  const auto of = [](std::string_view text, const std::string& name) {
    return separator_of(text, name, Quoting::kAuto);
  };
  EXPECT_EQ(of("a,b\n1,2\n", "f.csv"), ',');
  EXPECT_EQ(of("a,b\n1,2\n", "f.tsv"), '\t');
  EXPECT_EQ(of("a,b\n1,2\n", "F.CSV.gz"), ',');
  EXPECT_EQ(of("a,b\n1,2\n", "f"), ',');
  EXPECT_EQ(of("a;b\n1,0;2\n1,5;3\n", "f.csv"), ';');
  EXPECT_EQ(of("a\tb\n1,2\t3\n", "f.csv"), '\t');
  EXPECT_EQ(of("a\tb, c\n1\t2, 3\n", "f.txt"), '\t');
  // Sentences hold commas, but not as many each.
  EXPECT_EQ(of("One, two.\nNone here.\n", "f.txt"), '\t');
  EXPECT_EQ(of("", "f.csv"), ',');
  EXPECT_EQ(of("one\ntwo\n", "f.csv"), ',');
}

TEST(Csv, RowsThatAreWrong) {
  const auto parse = [](std::string_view text) { return parse_labelled(text, "f.csv", {}); };
  EXPECT_USER_ERROR(parse("text,label\na, b,pos\n"),
                    "f.csv: line 2: found 3 columns, expected 2 as in the first row, separated by "
                    "commas; a text that holds the separator needs quotes around it");
  EXPECT_USER_ERROR(parse("text,label\n\"a,pos\n"),
                    "f.csv: line 2: the quote that opens a field here is never closed");
  EXPECT_USER_ERROR(parse("text,label\na,pos\nb\n"), "f.csv: line 3: the label is empty");
  EXPECT_USER_ERROR(parse("only\nsome\n"), "separated by a tab, a comma or a semicolon");
}

TEST(Csv, TagsAreRowsOnlyWhereTheNameSaysSo) {
  const LabelledFileOptions tags{.kind = LabelKind::kTags};
  const LabelledFile lines = parse_labelled("Yes O\n, O\nBonn B-LOC\n", "f.txt", tags);
  EXPECT_EQ(lines.rows.at(0).words, (Strings{"Yes", ",", "Bonn"}));
  const LabelledFile rows = parse_labelled("words,tags\n\"Yes , Bonn\",O O B-LOC\n", "f.csv", tags);
  EXPECT_EQ(rows.rows.at(0).words, (Strings{"Yes", ",", "Bonn"}));
}

// ---- JSON lines

LabelledFile parse_lines(std::string_view text, LabelledFileOptions options = {}) {
  return parse_labelled(text, "f.jsonl", options);
}

TEST(JsonRows, FieldsAreColumns) {
  const LabelledFile file = parse_lines(
      "{\"text\": \"a \\\"b\\\"\\n\\tc\", \"label\": \"pos\"}\r\n\n"
      "{\"id\": {\"any\": [1]}, \"label\": \"neg\", \"text\": \"\\u00e9\"}\n");
  EXPECT_EQ(csv_texts_of(file), (Strings{"a \"b\"\n\tc", "é"}));
  EXPECT_EQ(csv_labels_of(file), (Strings{"pos", "neg"}));
  EXPECT_EQ(file.rows[1].line, 3);
  EXPECT_EQ(file.notes.at(0),
            "f.jsonl: each line is a JSON object; field 'text' is the text, field 'label' is the "
            "label");
  // By looking, whatever the name; labels of other types as JSON writes them.
  const LabelledFile looked = parse_labelled(
      "{\"sentence1\": \"a\", \"sentence2\": \"b\", \"label\": 1}\n"
      "{\"sentence1\": \"c\", \"sentence2\": \"d\", \"label\": 0}\n",
      "data", {});
  EXPECT_EQ(csv_texts_of(looked), (Strings{"a|b", "c|d"}));
  EXPECT_EQ(looked.labels, (Strings{"0", "1"}));
  const LabelledFile flags =
      parse_lines("{\"q\": \"a\", \"spam\": true}\n{\"q\": \"b\", \"spam\": false}\n",
                  {.text_column = "q", .label_column = "spam"});
  EXPECT_EQ(flags.labels, (Strings{"false", "true"}));
}

TEST(JsonRows, ListsAreWordsTagsAndNumbers) {
  const LabelledFile tags = parse_lines(
      "{\"id\": \"0\", \"tokens\": [\"In\", \"Bonn\"], \"ner_tags\": [\"O\", \"B-LOC\"]}\n",
      {.kind = LabelKind::kTags});
  EXPECT_EQ(tags.rows.at(0).words, (Strings{"In", "Bonn"}));
  EXPECT_EQ(tags.labels, (Strings{"B-LOC", "O"}));
  const LabelledFile values = parse_lines(
      "{\"text\": \"a\", \"score\": [0.5, -1]}\n{\"text\": \"b\", \"score\": [1e-3, 2]}\n",
      {.kind = LabelKind::kValues});
  EXPECT_EQ(values.rows.at(0).values, (std::vector<float>{0.5f, -1.0f}));
  EXPECT_EQ(values.rows.at(1).values, (std::vector<float>{1e-3f, 2.0f}));
}

TEST(JsonRows, WhatIsWrongNamesTheLine) {
  EXPECT_USER_ERROR(parse_lines("{\"text\": \"a\", \"label\": \"x\"}\n{\"text\": \"b\"}\n"),
                    "f.jsonl: line 2: the label is empty");
  EXPECT_USER_ERROR(parse_lines("{\"text\": \"a\", \"label\": {\"x\": 1}}\n"),
                    "f.jsonl: line 1: the field 'label' is an object; expected a text, a number");
  EXPECT_USER_ERROR(parse_lines("{\"text\": [[1]], \"label\": \"x\"}\n"),
                    "line 1: the field 'text' holds an array; expected");
  EXPECT_USER_ERROR(
      parse_lines("{\"tokens\": [\"New York\"], \"tags\": [\"O\"]}\n", {.kind = LabelKind::kTags}),
      "line 1: the field 'tokens' holds 'New York', which is no word");
  EXPECT_USER_ERROR(parse_lines("[{\"text\": \"a\"}]\n"), "make lines of it, for example with jq");
  EXPECT_USER_ERROR(parse_lines("3\n"), "f.jsonl: line 1: expected a JSON object such as");
  EXPECT_USER_ERROR(parse_lines("{\"text\": \"a\"\n"), "f.jsonl: line 1");
  EXPECT_USER_ERROR(parse_lines("{\"text\": \"a\", \"text\": \"b\"}\n"), "f.jsonl: line 1");
  EXPECT_USER_ERROR(parse_lines("\n"), "f.jsonl has no rows");
  EXPECT_USER_ERROR(parse_lines("{\"review\": \"a\", \"label\": \"x\", \"n\": 1}\n"),
                    "cannot tell which of the columns 'review', 'label', 'n' is the text");
  EXPECT_USER_ERROR(
      parse_lines("{\"text\": \"a\", \"label\": \"x\"}\n", {.text_column = "review"}),
      "--text-column review: f.jsonl has no such column; its first row, line 1, names");
  std::string many;
  for (int i = 0; i < 1001; ++i) many += fmt::format("{{\"f{}\": 1}}\n", i);
  EXPECT_USER_ERROR(parse_lines(many), "f.jsonl: line 1001: there are more than 1000 different");
}

TEST(PackedTables, AreReadAsTheirContent) {
  const test::TempFolder folder;
  const std::string rows = "text,label\n\"a, b\",pos\nc,neg\n";
  const std::string lines =
      "{\"text\": \"a, b\", \"label\": \"pos\"}\n{\"text\": \"c\", \"label\": \"neg\"}\n";
  for (const auto& [name, content] :
       std::map<std::string, std::string>{{"f.csv.gz", test::gzip_of(rows)},
                                          {"f.csv.zst", test::zstd_of(rows)},
                                          {"f.jsonl.gz", test::gzip_of(lines)},
                                          {"f.csv", rows},
                                          {"f", test::gzip_of(rows)}}) {
    write_file_atomically(folder / name, content);
    const LabelledFile file = read_labelled_file(folder / name, {});
    EXPECT_EQ(csv_texts_of(file), (Strings{"a, b", "c"})) << name;
    EXPECT_EQ(csv_labels_of(file), (Strings{"pos", "neg"})) << name;
  }
  write_file_atomically(folder / "cut.csv.gz", test::gzip_of(rows).substr(0, 30));
  EXPECT_USER_ERROR(read_labelled_file(folder / "cut.csv.gz", {}), "cut.csv.gz is an archive");
}

}  // namespace
}  // namespace brrr::io
