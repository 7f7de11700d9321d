// Fields separated by tabs: what quotes mean in each way of reading them, and that lines are not
// lost.

#include "data/labelled/tsv.h"

#include <gtest/gtest.h>

#include "support/random_text.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using Rows = std::vector<std::vector<std::string>>;

Rows rows_of(std::string_view text, Quoting quoting) {
  TsvReader reader(text, "f.tsv", quoting);
  std::vector<std::string_view> fields;
  Rows rows;
  while (reader.next(fields)) rows.emplace_back(fields.begin(), fields.end());
  return rows;
}

/// text_of of make_tsv_goldens.py, letter for letter.
std::string random_table(uint32_t index) {
  constexpr const char* kPieces[] = {"\"", "\"", "\"\"", "\t", "\t", "\n", "\r\n", "a", "b c", "é"};
  RngStream words({test::kTextSeed, 0}, index);
  std::string text;
  for (uint32_t pieces = 1 + words.next_u32() % 30; pieces > 0; --pieces)
    text += kPieces[words.next_u32() % std::size(kPieces)];
  return text;
}

constexpr uint32_t kTexts = 20'000;

/// The hash of the rows of all texts, as make_tsv_goldens.py has it.
uint64_t hash_of_all(Quoting quoting, int* open_quotes) {
  uint64_t hash = test::kHashStart;
  for (uint32_t index = 0; index < kTexts; ++index) {
    Rows rows;
    try {
      rows = rows_of(random_table(index), quoting);
    } catch (const UserError&) {
      ++*open_quotes;
      hash = test::fnv(hash, 0xFFFFFFFD);
      continue;
    }
    for (const auto& row : rows) {
      for (const std::string& field : row) hash = test::hash_text(hash, field);
      hash = test::fnv(hash, 0xFFFFFFFE);
    }
  }
  return hash;
}

// tests/golden/make_tsv_goldens.py prints these numbers: Python's csv module, compared with pandas.
TEST(Tsv, ReadsWhatCsvReadersRead) {
  int open_quotes = 0;
  EXPECT_EQ(hash_of_all(Quoting::kCsv, &open_quotes), 0x9e41656f45f3ae98u);
  EXPECT_EQ(open_quotes, 6946);
  open_quotes = 0;
  EXPECT_EQ(hash_of_all(Quoting::kNone, &open_quotes), 0x2831de3cc6bd65dfu);
  EXPECT_EQ(open_quotes, 0);
}

// A field of kAuto is the one of kNone, or what kCsv makes of it where it is quoted in itself.
TEST(Tsv, AutomaticQuotesNeverTakeLines) {
  for (uint32_t index = 0; index < kTexts; ++index) {
    const std::string text = random_table(index);
    TsvReader reader(text, "f.tsv", Quoting::kAuto), lines(text, "f.tsv", Quoting::kNone);
    std::vector<std::string_view> fields, plain;
    while (lines.next(plain)) {
      ASSERT_TRUE(reader.next(fields));
      ASSERT_EQ(reader.line(), lines.line()) << text;
      ASSERT_LE(fields.size(), plain.size()) << text;
      for (const std::string_view field : fields) ASSERT_EQ(field.find('\n'), field.npos);
    }
    ASSERT_FALSE(reader.next(fields)) << text;
    ASSERT_EQ(reader.empty_lines(), lines.empty_lines());
  }
}

TEST(Tsv, QuotesByHand) {
  EXPECT_EQ(rows_of("\"a\"\tb\n", Quoting::kAuto), (Rows{{"a", "b"}}));
  EXPECT_EQ(rows_of("\"a\"\tb\n", Quoting::kNone), (Rows{{"\"a\"", "b"}}));
  EXPECT_EQ(rows_of("\"a\"\"b\t\"\tc", Quoting::kAuto), (Rows{{"a\"b\t", "c"}}));
  const char* const said = "\"Great\" he said\tpos\na \"b\" c\tneg\n";
  EXPECT_EQ(rows_of(said, Quoting::kAuto),
            (Rows{{"\"Great\" he said", "pos"}, {"a \"b\" c", "neg"}}));
  EXPECT_EQ(rows_of(said, Quoting::kCsv), (Rows{{"Great he said", "pos"}, {"a \"b\" c", "neg"}}));
  const char* const two_lines = "\"a\nb\"\tpos\r\n";
  EXPECT_EQ(rows_of(two_lines, Quoting::kCsv), (Rows{{"a\nb", "pos"}}));
  EXPECT_EQ(rows_of(two_lines, Quoting::kAuto), (Rows{{"\"a"}, {"b\"", "pos"}}));
  EXPECT_EQ(rows_of("a\t\"\"\n\t\n", Quoting::kAuto), (Rows{{"a", ""}, {"", ""}}));
  EXPECT_EQ(rows_of("a\rb\tc\r\n", Quoting::kAuto), (Rows{{"a\rb", "c"}}));
}

TEST(Tsv, LinesAndQuotesAreCounted) {
  const std::string text = "\n  \na\t\"b\n\"c\"\t\"d\"\n\r\n\"\te\n";
  TsvReader reader(text, "f.tsv", Quoting::kAuto);
  std::vector<std::string_view> fields;
  std::vector<int64_t> lines;
  while (reader.next(fields)) lines.push_back(reader.line());
  EXPECT_EQ(lines, (std::vector<int64_t>{3, 4, 6}));
  EXPECT_EQ(reader.empty_lines(), 3);
  EXPECT_EQ(reader.plain_quotes(), 2);
  EXPECT_EQ(reader.first_plain_quote(), 3);
  TsvReader quoted("\"a\n\nb\"\tc\nd\te\n", "f.tsv", Quoting::kCsv);
  EXPECT_TRUE(quoted.next(fields));
  EXPECT_EQ(quoted.line(), 1);
  EXPECT_TRUE(quoted.next(fields));
  EXPECT_EQ(quoted.line(), 4);
}

TEST(Tsv, Errors) {
  EXPECT_USER_ERROR(rows_of("a\tb\nc\t\"d\n\ne\tf\n", Quoting::kCsv),
                    "f.tsv: line 2: the quote that opens a field here is never closed");
  const auto table = [](std::string_view text) {
    TsvReader reader(text, "f.tsv", Quoting::kAuto);
    return read_table(reader, "f.tsv").rows();
  };
  EXPECT_EQ(table("a\tb\nc\td\n"), 2u);
  EXPECT_EQ(table(""), 0u);
  EXPECT_USER_ERROR(table("a\tb\n\nc\n"), "f.tsv: line 3: found 1 column, expected 2");
  EXPECT_USER_ERROR(table("a\tb\nc\td\te\n"), "line 2: found 3 columns, expected 2");
  EXPECT_USER_ERROR(
      table("a\tb\n\"c\nd\"\te\n"),
      "line 2 opens a quote without closing it: pass --quoting csv if fields span lines");
  EXPECT_EQ(quoting_from_name("csv"), Quoting::kCsv);
  for (const Quoting quoting : {Quoting::kAuto, Quoting::kCsv, Quoting::kNone})
    EXPECT_EQ(quoting_from_name(name_of(quoting)), quoting);
  EXPECT_USER_ERROR(quoting_from_name("all"), "unknown quoting 'all'");
}

}  // namespace
}  // namespace brrr::io
