// Texts with labels from files: which column is which, labels of all kinds, and an error that names
// the line for all that is wrong.

#include "data/labelled/labelled_file.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/env.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

LabelledFile parse(std::string_view text, LabelledFileOptions options = {}) {
  return parse_labelled(text, "f.tsv", options);
}
LabelledFile parse(std::string_view text, LabelKind kind) {
  return parse(text, LabelledFileOptions{.kind = kind});
}

std::vector<std::string> texts_of(const LabelledFile& file) {
  std::vector<std::string> texts;
  for (const LabelledRow& row : file.rows)
    texts.push_back(file.has_pairs ? row.text + "|" + row.text2 : row.text);
  return texts;
}
std::vector<int32_t> labels_of(const LabelledFile& file) {
  std::vector<int32_t> labels;
  for (const LabelledRow& row : file.rows) labels.push_back(row.label);
  return labels;
}
bool has_note(const LabelledFile& file, std::string_view part) {
  return std::any_of(file.notes.begin(), file.notes.end(),
                     [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

using Strings = std::vector<std::string>;
using Ids = std::vector<int32_t>;

TEST(LabelledFile, AHeaderNamesTheColumns) {
  const LabelledFile file = parse("Sentence\tLABEL\ngood one\tpos\nbad\tneg\nfine\tpos\n");
  EXPECT_EQ(texts_of(file), (Strings{"good one", "bad", "fine"}));
  EXPECT_EQ(file.labels, (Strings{"neg", "pos"}));
  EXPECT_EQ(labels_of(file), (Ids{1, 0, 1}));
  EXPECT_EQ(file.rows[1].line, 3);
  EXPECT_TRUE(has_note(file, "line 1 is a header; column 'Sentence' is the text, column 'LABEL'"))
      << file.notes[0];
  // Other columns are not read, and pairs are known by their names.
  const LabelledFile pairs = parse(
      "idx\tsentence1\tscore\tsentence2\n7\ta b\t2.5\tc\n8\td\t-1e-1\te f\n", LabelKind::kValues);
  EXPECT_EQ(texts_of(pairs), (Strings{"a b|c", "d|e f"}));
  EXPECT_EQ(pairs.rows[0].values, (std::vector<float>{2.5f}));
  EXPECT_EQ(pairs.rows[1].values, (std::vector<float>{-0.1f}));
  EXPECT_EQ(pairs.values_per_row, 1);
  // The other of two columns is the text, whatever its name.
  EXPECT_EQ(texts_of(parse("review\tlabel\na\tx\nb\ty\n")), (Strings{"a", "b"}));
}

TEST(LabelledFile, OptionsNameColumns) {
  const std::string text = "Quality\tid\t#1 String\t#2 String\n1\t10\ta b\tc d\n0\t11\te\tf\n";
  LabelledFileOptions options{.text_column = "#1 string", .label_column = "quality"};
  EXPECT_EQ(texts_of(parse(text, options)), (Strings{"a b", "e"}));
  options.text2_column = "#2 String";
  EXPECT_EQ(texts_of(parse(text, options)), (Strings{"a b|c d", "e|f"}));
  const LabelledFileOptions numbers{
      .text_column = "4", .label_column = "1", .header = TsvHeader::kYes};
  EXPECT_EQ(texts_of(parse(text, numbers)), (Strings{"c d", "f"}));
  EXPECT_EQ(parse(text, numbers).labels, (Strings{"0", "1"}));
  // Without a header: numbers.
  const LabelledFileOptions second{.label_column = "2"};
  EXPECT_EQ(texts_of(parse("x\ty\nz\ty\n", second)), (Strings{"x", "z"}));
  const LabelledFileOptions first{.label_column = "1"};
  EXPECT_EQ(texts_of(parse("x\ty\tz\n", first)), (Strings{"y|z"}));
  // A first line whose label is called "label" is an example if the user says so.
  const LabelledFileOptions no_header{.label_column = "2", .header = TsvHeader::kNo};
  EXPECT_EQ(parse("the word\tlabel\nx\ty\n", no_header).rows.size(), 2u);
}

TEST(LabelledFile, FieldsShowTheLabel) {
  EXPECT_EQ(texts_of(parse("pos\ta good one\nneg\tbad\npos\tfine\n")),
            (Strings{"a good one", "bad", "fine"}));
  const LabelledFile last = parse("a good one\tpos\nbad\tneg\nfine\tpos\n");
  EXPECT_EQ(texts_of(last), (Strings{"a good one", "bad", "fine"}));
  EXPECT_TRUE(has_note(last,
                       "there is no header; column 1 is the text, column 2 is the label, as "
                       "the fields show"))
      << last.notes[0];
  EXPECT_EQ(texts_of(parse("yes\ta b\tc d\nno\te f\tg\n")), (Strings{"a b|c d", "e f|g"}));
  EXPECT_EQ(texts_of(parse("0.5\ttwo\n-1\t3 of them\n", LabelKind::kValues)),
            (Strings{"two", "3 of them"}));
  const char* const message = "which column is the text and which the label";
  EXPECT_USER_ERROR(parse("good\tpos\nbad\tneg\n"), message);     // both are single words
  EXPECT_USER_ERROR(parse("a b\tvery good\nc\tbad\n"), message);  // neither is
  EXPECT_USER_ERROR(parse("a\tb c\nd\te f\ng\tb c\n"), message);  // more labels than texts
  EXPECT_USER_ERROR(parse("a b\tx\tc d\ne\ty\tf g\n"), message);  // in the middle
  EXPECT_USER_ERROR(parse("1\t2\n3\t4\n", LabelKind::kValues), message);
  EXPECT_USER_ERROR(
      parse("1\ta\t2\tb c\n"),
      "pass --text-column and --label-column, each a name in the header or a number from 1 to 4");
}

TEST(LabelledFile, ClassesAreSorted) {
  const auto labels = [](std::string_view text) {
    return parse(text, LabelledFileOptions{.label_column = "1"}).labels;
  };
  EXPECT_EQ(labels("10\ta\n9\tb\n-1\tc\n+2\td\n"), (Strings{"-1", "+2", "9", "10"}));
  EXPECT_EQ(labels("10\ta\n9\tb\nx\tc\n"), (Strings{"10", "9", "x"}));
  EXPECT_EQ(labels("é\ta\nz\tb\nZ\tc\n"), (Strings{"Z", "z", "é"}));
  EXPECT_EQ(labels(" a \tx\na\ty\n"), (Strings{"a"}));
  EXPECT_EQ(labels("99999999999999999999\ta\n9\tb\n"), (Strings{"9", "99999999999999999999"}));
}

TEST(LabelledFile, LabelsOfAModel) {
  LabelledFileOptions options{.label_column = "label", .labels = {"pos", "neutral", "neg"}};
  const LabelledFile file = parse("label\ttext\nneg\ta\npos\tb\n", options);
  EXPECT_EQ(file.labels, options.labels);
  EXPECT_EQ(labels_of(file), (Ids{2, 0}));
  EXPECT_TRUE(has_note(file, "no example has the label 'neutral'"));
  EXPECT_USER_ERROR(parse("label\ttext\nneg\ta\nbad\tb\n", options),
                    "f.tsv: line 3: 'bad' is not one of the labels: 'pos', 'neutral', 'neg'");
  options.labels = {"a", "a"};
  EXPECT_USER_ERROR(parse("label\ttext\na\tb\n", options), "the label 'a' was given twice");
}

TEST(LabelledFile, QuotesLineEndsAndEmptyLines) {
  const LabelledFile file = parse(
      "\xef\xbb\xbftext\tlabel\r\n\"with \"\"quotes\"\"\tand a tab\"\tpos\r\n\r\n"
      "\"Great\" film\tneg\r\n\"open\tneg\r\n\tpos");
  EXPECT_EQ(texts_of(file),
            (Strings{"with \"quotes\"\tand a tab", "\"Great\" film", "\"open", ""}));
  EXPECT_EQ(file.rows[3].line, 6);
  EXPECT_TRUE(has_note(file, "1 empty line was left out"));
  EXPECT_TRUE(has_note(
      file,
      "2 fields begin with a double quote that is not closed at its end, the first in line 4"));
  EXPECT_TRUE(has_note(file, "1 text is empty"));
  LabelledFileOptions csv{.quoting = Quoting::kCsv};
  const LabelledFile over_lines = parse("text\tlabel\n\"a\nb\"\tx\nc\ty\n", csv);
  EXPECT_EQ(texts_of(over_lines), (Strings{"a\nb", "c"}));
  EXPECT_EQ(over_lines.rows[1].line, 4);
  EXPECT_USER_ERROR(parse("text\tlabel\n\"a\nb\tx\nc\ty\n", csv), "f.tsv: line 2: the quote that");
}

TEST(LabelledFile, AHeaderThatIsNotKnownIsNoExample) {
  const std::string text = "review\tsentiment\na b\tpos\nc\tneg\nd e\tpos\nf\tneg\n";
  EXPECT_USER_ERROR(parse(text),
                    "f.tsv: line 1: no other line has the label 'sentiment'; pass --header yes if "
                    "this line is a header");
  LabelledFileOptions options{.header = TsvHeader::kYes};
  EXPECT_EQ(parse(text, options).rows.size(), 4u);
  options.header = TsvHeader::kNo;
  EXPECT_EQ(parse(text, options).labels, (Strings{"neg", "pos", "sentiment"}));
  EXPECT_USER_ERROR(parse("review\trating\na\t1\n",
                          LabelledFileOptions{.kind = LabelKind::kValues, .label_column = "2"}),
                    "line 1: expected a number as the label; found 'rating'; if this line is a "
                    "header, pass --header yes");
}

TEST(LabelledFile, ColumnsThatAreWrong) {
  EXPECT_USER_ERROR(parse(""), "f.tsv has no rows");
  EXPECT_USER_ERROR(parse("\n\n"), "f.tsv has no rows");
  EXPECT_USER_ERROR(parse("text\tlabel\n"), "f.tsv has a header and no rows");
  EXPECT_USER_ERROR(parse_labelled("{}\n{}\n", "f.jsonl", {}), "f.jsonl: no line has a field");
  EXPECT_USER_ERROR(parse("just text\nmore\n"),
                    "expected a text and its label in each row, separated by a tab, a comma or a "
                    "semicolon; line 1 "
                    "has 1 column");
  EXPECT_USER_ERROR(parse("label\nx\n"), "expected another column for the text");
  EXPECT_USER_ERROR(parse("text\tlabel\na\tx\nb\n"), "f.tsv: line 3: found 1 column, expected 2");
  EXPECT_USER_ERROR(parse("text\tlabel\na\tx\tb\n"), "line 2: found 3 columns, expected 2");
  EXPECT_USER_ERROR(parse("text\tlabel\tscore\na\tx\t1\n"),
                    "both columns 'label' and 'score' of the header in line 1 fit; choose one with "
                    "--label-column");
  EXPECT_USER_ERROR(parse("question\tanswer\tlabel\na\tb\tc\n"),
                    "which of the columns 'question', 'answer', 'label' is the text; choose it "
                    "with --text-column");
  EXPECT_USER_ERROR(parse("a\tb\n", LabelledFileOptions{.label_column = "3"}),
                    "--label-column 3: f.tsv has 2 columns, numbered from 1");
  EXPECT_USER_ERROR(parse("a\tb\n", LabelledFileOptions{.label_column = "0"}), "numbered from 1");
  EXPECT_USER_ERROR(parse("a\tb\n", LabelledFileOptions{.label_column = "99999999999999999999999"}),
                    "numbered from 1");
  EXPECT_USER_ERROR(parse("text\tlabel\na\tx\n", LabelledFileOptions{.text_column = "review"}),
                    "--text-column review: f.tsv has no such column; its first row, line 1, names "
                    "'text', 'label'");
  EXPECT_USER_ERROR(
      parse("a\tb\n", LabelledFileOptions{.text_column = "review", .header = TsvHeader::kNo}),
      "without a header columns have no names; expected a number from 1 to 2");
  EXPECT_USER_ERROR(
      parse("text\tlabel\na\tx\n", LabelledFileOptions{.text_column = "2", .label_column = "2"}),
      "column 2 was named twice");
  EXPECT_USER_ERROR(parse("text\tlabel\na\tx\nb\t \n"), "line 3: the label is empty");
  EXPECT_EQ(header_from_name("yes"), TsvHeader::kYes);
  EXPECT_USER_ERROR(header_from_name("maybe"), "unknown header 'maybe'");
}

TEST(LabelledFile, BytesThatAreNoText) {
  EXPECT_USER_ERROR(parse("text\tlabel\nab\tx\ncaf\xe9\ty\n"),
                    "f.tsv: line 3, byte 4 (0xe9) is not UTF-8");
  EXPECT_USER_ERROR(parse(std::string("text\tlabel\na") + '\0' + "\tx\n" + std::string(200, 'a')),
                    "f.tsv: line 2, byte 2 is NUL");
  EXPECT_USER_ERROR(parse("\xff\xfet\0e\0"), "UTF-16");
  test::TempFolder folder;
  EXPECT_USER_ERROR(read_labelled_file(folder / "absent.tsv", {}), "absent.tsv");
  write_file_atomically(folder / "some.tsv", "text\tlabel\na\tx\n");
  EXPECT_EQ(read_labelled_file(folder / "some.tsv", {}).rows.size(), 1u);
}

TEST(LabelledFile, ValuesAreNumbers) {
  const LabelledFile several = parse("text\tscore\na\t1 2.5\nb\t-3  +4e1\n", LabelKind::kValues);
  EXPECT_EQ(several.values_per_row, 2);
  EXPECT_EQ(several.rows[1].values, (std::vector<float>{-3, 40}));
  EXPECT_TRUE(several.labels.empty());
  const auto values = [](std::string_view field) {
    return parse("text\tscore\na\t1\nb\t" + std::string(field) + "\n", LabelKind::kValues);
  };
  for (const char* const bad : {"good", "1,5", "nan", "inf", "1e99", "0x1p3", "1.5x", "--1", "+-1"})
    EXPECT_USER_ERROR(values(bad), "f.tsv: line 3: expected a number as the label; found");
  EXPECT_USER_ERROR(values("1 2"),
                    "line 3: expected a number as the label, as in the first row; found 2");
  EXPECT_USER_ERROR(values(""), "found 0");
}

TEST(LabelledFile, TokensAndTagsByLines) {
  const LabelledFile file = parse(
      "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n \t\nPeter NNP B-NP B-PER\n"
      "\" \" O O\nBlackburn NNP I-NP I-PER\r\n",
      LabelKind::kTags);
  ASSERT_EQ(file.rows.size(), 2u);
  EXPECT_EQ(file.rows[0].words, (Strings{"EU", "rejects"}));
  EXPECT_EQ(file.rows[1].words, (Strings{"Peter", "\"", "Blackburn"}));
  EXPECT_EQ(file.labels, (Strings{"B-ORG", "B-PER", "I-PER", "O"}));
  EXPECT_EQ(file.rows[0].tags, (Ids{0, 3}));
  EXPECT_EQ(file.rows[1].tags, (Ids{1, 3, 2}));
  EXPECT_EQ(file.rows[1].line, 7);
  EXPECT_TRUE(has_note(file, "a token and its tag on each line, 2 sentences"));
  const LabelledFile tabs = parse("a\tO\nb\tB-X\n\nc\tO\n", LabelKind::kTags);
  EXPECT_EQ(tabs.rows.size(), 2u);
  EXPECT_EQ(tabs.labels, (Strings{"B-X", "O"}));
  EXPECT_USER_ERROR(parse("a O\nb\n", LabelKind::kTags),
                    "f.tsv: line 2: expected a token and its tag, in 2 columns as in the first "
                    "line; found 1 column");
  EXPECT_USER_ERROR(parse("a\n", LabelKind::kTags),
                    "line 1: expected a token and its tag, separated by a tab or a space");
  EXPECT_USER_ERROR(parse("a O x\nb O\n", LabelKind::kTags), "in 3 columns as in the first line");
  EXPECT_USER_ERROR(parse("a\tO\nb\t\n", LabelKind::kTags), "line 2: the tag is empty");
  EXPECT_USER_ERROR(parse("\n-DOCSTART- O\n", LabelKind::kTags), "f.tsv has no rows");
  EXPECT_USER_ERROR(
      parse("a O\nb B-X\n", LabelledFileOptions{.kind = LabelKind::kTags, .labels = {"O"}}),
      "f.tsv: line 2: 'B-X' is not one of the labels: 'O'");
}

TEST(LabelledFile, TokensAndTagsByRows) {
  for (const char* const text :
       {"tokens\tner_tags\n\" He  said \"\tO O O O\nPeter\tB-PER\n",
        "\" He said \"\tO O O O\nPeter\tB-PER\n", "O O O O\t\" He said \"\nB-PER\tPeter\n"}) {
    const LabelledFile file = parse(text, LabelKind::kTags);
    ASSERT_EQ(file.rows.size(), 2u) << text;
    EXPECT_EQ(file.rows[0].words, (Strings{"\"", "He", "said", "\""}));
    EXPECT_EQ(file.rows[0].tags, (Ids{1, 1, 1, 1}));
    EXPECT_EQ(file.rows[1].tags, (Ids{0}));
  }
  EXPECT_USER_ERROR(
      parse("text\ttags\na b\tO O\na b c\tO O\n", LabelKind::kTags),
      "f.tsv: line 3: 3 words and 2 tags, separated by spaces; expected a tag for each word");
  EXPECT_USER_ERROR(parse("text\ttags\n\t\na b\tO O\n", LabelKind::kTags), "0 words and 0 tags");
  EXPECT_USER_ERROR(parse("a b\tN V\nc\tN\n", LabelKind::kTags), "cannot tell");
  EXPECT_EQ(
      parse("a b\tN V\nc\tN\n", LabelledFileOptions{.kind = LabelKind::kTags, .label_column = "2"})
          .labels,
      (Strings{"N", "V"}));
  EXPECT_USER_ERROR(
      parse("text\ttext2\ttags\na\tb\tO\n",
            LabelledFileOptions{
                .kind = LabelKind::kTags, .text_column = "text", .text2_column = "text2"}),
      "--text2-column text2: tagged words have no second text; leave it out");
}

TEST(LabelledFile, EveryTenthRowIsHeldOut) {
  std::string text = "label\ttext\n";
  for (int i = 1; i <= 25; ++i) text += fmt::format("{}\trow {}\n", i % 2, i);
  const auto [train, validation] = hold_out(parse(text), 0.1);
  EXPECT_EQ(texts_of(validation), (Strings{"row 10", "row 20"}));
  EXPECT_EQ(train.rows.size(), 23u);
  EXPECT_EQ(train.labels, validation.labels);
  EXPECT_EQ(validation.rows[0].line, 11);
  EXPECT_EQ(hold_out(parse(text), 0.3).validation.rows.size(), 8u);  // every third
  EXPECT_EQ(hold_out(parse(text), 0.5).validation.rows.size(), 12u);
  const LabelledSplit none = hold_out(parse(text), 0);
  EXPECT_EQ(none.train.rows.size(), 25u);
  EXPECT_TRUE(none.validation.rows.empty());
  EXPECT_USER_ERROR(hold_out(parse(text), 0.02),
                    "f.tsv has 25 rows; every 50-th is for validation, so at least that many");
  for (const double bad : {-1.0, 0.6, 1.0})
    EXPECT_USER_ERROR(hold_out(parse(text), bad), "expected 0 to 0.5");
}

TEST(LabelledFile, ALabelThatIsHeldOutIsSaid) {
  const auto [train, validation] = hold_out(parse("label\ttext\nx\ta\ny\tb\nx\tc\ny\td\n"), 0.5);
  EXPECT_TRUE(has_note(train, "all examples of the label 'y' are held out for validation"));
  EXPECT_FALSE(has_note(train, "label 'x'"));
  const LabelledFile tags = parse("a O\n\nb B-X\n", LabelKind::kTags);
  EXPECT_TRUE(has_note(hold_out(tags, 0.5).train, "all examples of the label 'B-X'"));
}

// A wrong column would give a model with a class for each row.
TEST(LabelledFile, LabelsThatLookLikeNumbersOrIdsNeedAnOption) {
  std::string ratings = "label\ttext\n", names = "label\ttext\n", ids = "label\ttext\n";
  for (int i = 0; i < 900; ++i) {
    ratings += fmt::format("{}.{}\trow\n", i / 10, i % 10);
    names += fmt::format("name{}\trow\n", i / 2 + i % 2 * 1000);
    ids += fmt::format("{}\trow\n", i % 77);
  }
  EXPECT_USER_ERROR(parse(ratings),
                    "f.tsv: the labels are 900 different numbers, such as '0.0': --task regress "
                    "learns to predict numbers; to learn each as a class of its own all the same, "
                    "pass --any-labels");
  EXPECT_USER_ERROR(parse(names),
                    "f.tsv: 900 rows have 900 different labels, such as 'name0', as ids have: name "
                    "the column of the classes with --label-column; to learn each");
  EXPECT_EQ(parse(ids).labels.size(), 77u);  // few integers are classes
  EXPECT_EQ(parse(ratings, {.any_labels = true}).labels.size(), 900u);
  // The labels of a model are no question.
  const LabelledFile all = parse(names, {.any_labels = true});
  EXPECT_EQ(parse(names, {.labels = all.labels}).labels, all.labels);
  // What is said of many labels is one line.
  const LabelledFile train = hold_out(all, 0.5).train;
  const auto noted = [&](const char* part) {
    return std::count_if(train.notes.begin(), train.notes.end(),
                         [&](const std::string& n) { return n.find(part) != std::string::npos; });
  };
  EXPECT_EQ(noted("held out for validation"), 1);
  EXPECT_EQ(noted("all examples of the labels 'name1000', 'name1001',"), 1);
  EXPECT_EQ(noted(" and 430 more are held out"), 1);
}

TEST(LabelledFile, AFileLikeAnother) {
  const test::TempFolder folder;
  const auto like = [&](const LabelledFile& first, std::string_view text) {
    write_file_atomically(folder / "second.tsv", text);
    return read_labelled_file_like(first, folder / "second.tsv", {});
  };
  const LabelledFile classes = parse("label\ttext\nx\ta\ny\tb\n");
  const LabelledFile second = like(classes, "text\tlabel\nc\ty\n");
  EXPECT_EQ(second.labels, (Strings{"x", "y"}));
  EXPECT_EQ(labels_of(second), (Ids{1}));
  EXPECT_TRUE(has_note(second, "no example has the label 'x'"));
  EXPECT_USER_ERROR(like(classes, "text\tlabel\nc\tz\n"),
                    "second.tsv: line 2: 'z' is not one of the labels: 'x', 'y'");
  EXPECT_USER_ERROR(like(classes, "text\ttext2\tlabel\nc\td\ty\n"),
                    "second.tsv has pairs of texts, but f.tsv has single texts");
  const LabelledFile values = parse("score\ttext\n1 2\ta\n", LabelKind::kValues);
  EXPECT_EQ(like(values, "score\ttext\n3 4\ta\n").rows[0].values, (std::vector<float>{3, 4}));
  EXPECT_USER_ERROR(like(values, "score\ttext\n3\ta\n"),
                    "second.tsv has 1 number in each row, but f.tsv has 2");
}

// Ratings of sentences: which column is the number shows by itself, and plain quotes take no line.
TEST(LabelledFile, RatedSentences) {
  const auto data = env::get("BRRR_DATA");
  if (!data) GTEST_SKIP() << "BRRR_DATA names no folder with sentences/";
  const fs::path folder = fs::path(*data) / "sentences";
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is absent";
  for (const char* const name : {"movies.tsv", "products.tsv", "tweets.tsv", "editorials.tsv"}) {
    const std::string text = read_file(folder / name);
    const LabelledFile file =
        read_labelled_file(folder / name, LabelledFileOptions{.kind = LabelKind::kValues});
    EXPECT_EQ(static_cast<int64_t>(file.rows.size()),
              std::count(text.begin(), text.end(), '\n') + (text.ends_with('\n') ? 0 : 1));
    for (const LabelledRow& row : file.rows) {
      ASSERT_LE(std::abs(row.values[0]), 4);
      ASSERT_FALSE(row.text.empty());
    }
  }
}

}  // namespace
}  // namespace brrr::io
