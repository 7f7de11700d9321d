// Texts in .jsonl files and archives, as corpora take them.

#include "data/packed/plain_text.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "data/corpus.h"
#include "data/file_stamp.h"
#include "support/packed.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

class PlainText : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("BRRR_CACHE", (folder_ / "cache").c_str(), 1); }
  void TearDown() override { ::unsetenv("BRRR_CACHE"); }
  fs::path put(const std::string& name, std::string_view content) {
    write_file_atomically(folder_ / name, content);
    return folder_ / name;
  }
  std::string text_of(const fs::path& path, const PlainTextOptions& options = {}) {
    return read_file(plain_text_of(path, options));
  }

  test::TempFolder folder_;
};

constexpr const char* kRecords =
    "{\"id\": 1, \"text\": \"one\\ntwo\"}\r\n\n{\"text\": \"\\u00e9 \\\"three\\\"\", \"id\": 2}\n"
    "{\"text\": null}\n{\"text\": \"\"}\n{\"text\": \"four\"}";

TEST_F(PlainText, ArchivesAndRecordsBecomeText) {
  const std::string text = "some text, é\n";
  EXPECT_EQ(plain_text_of(put("a.txt", text), {}), folder_ / "a.txt");
  EXPECT_EQ(text_of(put("a.txt.gz", test::gzip_of(text))), text);
  EXPECT_EQ(text_of(put("a.zst", test::zstd_of(text))), text);
  EXPECT_EQ(text_of(put("misnamed", test::zstd_of(text))), text);
  const std::string records = "one\ntwo\né \"three\"\nfour\n";
  EXPECT_EQ(text_of(put("r.jsonl", kRecords)), records);
  EXPECT_EQ(text_of(put("bom.ndjson", std::string("\xef\xbb\xbf") + kRecords)), records);
  EXPECT_EQ(text_of(put("r.jsonl.gz", test::gzip_of(kRecords))), records);
  EXPECT_EQ(text_of(put("r.jsonl.zst", test::zstd_of(kRecords))), records);
  EXPECT_EQ(text_of(put("s.jsonl", kRecords), {.separator = "<|end|>"}),
            "one\ntwo<|end|>é \"three\"<|end|>four<|end|>");
  EXPECT_EQ(text_of(put("f.jsonl", "{\"a\": \"x\", \"b\": \"y\"}\n"), {.field = "b"}), "y\n");
  EXPECT_EQ(text_of(put("g.jsonl", "{\"n\": 3, \"content\": \"only\"}\n")), "only\n");
}

// Characters that a piece cuts through are whole in the text.
TEST_F(PlainText, LongArchivesAreCheckedInPieces) {
  std::string text;
  while (text.size() < 3'000'000) text += "é€😀a";
  EXPECT_EQ(text_of(put("long.gz", test::gzip_of(text))), text);
  text += "\xff";
  EXPECT_USER_ERROR(plain_text_of(put("bad.gz", test::gzip_of(text)), {}),
                    "bad.gz is not UTF-8 (byte 0xff at offset " + std::to_string(text.size() - 1));
  EXPECT_EQ(text_of(folder_ / "bad.gz", {.accept_bytes = true}), text);
}

TEST_F(PlainText, TheCacheHoldsWhatTheFileHolds) {
  const fs::path path = put("a.txt.gz", test::gzip_of("first"));
  const fs::path first = plain_text_of(path, {});
  EXPECT_EQ(plain_text_of(path, {}), first);
  EXPECT_EQ(stamp_of(first).modified_ns, stamp_of(path).modified_ns);
  put("a.txt.gz", test::gzip_of("second"));
  EXPECT_EQ(text_of(path), "second");
  const fs::path records = put("r.jsonl", "{\"text\": \"a\", \"b\": \"c\"}\n");
  EXPECT_EQ(text_of(records), "a\n");
  EXPECT_EQ(text_of(records, {.field = "b"}), "c\n");
  EXPECT_EQ(text_of(records, {.separator = "|"}), "a|");
}

TEST_F(PlainText, ErrorsNameTheFileAndTheLine) {
  const auto refused = [&](const std::string& name, std::string_view content,
                           const std::string& part, const PlainTextOptions& options = {}) {
    const fs::path path = put(name, content);
    EXPECT_USER_ERROR(plain_text_of(path, options), part);
    // Nothing is left in the cache that looks like the text.
    EXPECT_USER_ERROR(plain_text_of(path, options), part);
  };
  refused("a.jsonl", "{\"text\": \"a\"}\n[1]\n", "a.jsonl: line 2: expected a JSON object such as");
  refused("a.jsonl", "{\"text\": \"a\"\n", "a.jsonl: line 1");
  refused("a.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n",
          "line 2: expected a text in the field 'text'; the fields are 'txt'");
  refused("a.jsonl", "{\"text\": 3}\n", "line 1: expected a text in the field 'text'; found the");
  refused("a.jsonl", "{\"a\": \"x\", \"b\": \"y\"}\n",
          "line 1: cannot tell which field is the text; choose it with --text-column: 'a', 'b'");
  refused("a.jsonl", "{\"text\": \"a\"}\n", "expected a text in the field 'b'", {.field = "b"});
  refused("a.jsonl", "{\"text\": \"a\\u0000b\"}\n", "line 1: the text holds a NUL character");
  refused("a.jsonl", "{\"text\": \"a|b\"}\n", "line 1: the text holds the separator '|'",
          {.separator = "|"});
  refused("a.jsonl", "\n{\"text\": \"\"}\n", "a.jsonl has no texts");
  refused("a.jsonl", "{\"text\": \"" + std::string(size_t{65} << 20, 'x') + "\"}",
          "a.jsonl: line 1 is longer than 67.1 MB");
  refused("t.gz", test::gzip_of("some text").substr(0, 15),
          "t.gz is an archive that ends too early");
  refused("b.gz", test::gzip_of(std::string("bin\0ary", 7)),
          "b.gz is binary, not text (NUL at byte 3)");
}

TEST_F(PlainText, RecordsAreDocumentsOfACorpus) {
  const fs::path plain = put("a.txt", "plain"), records = put("r.jsonl", kRecords);
  EXPECT_EQ(load_corpus({.text = {plain, records}}).text, "plainone\ntwo\né \"three\"\nfour\n");
  const Corpus corpus = load_corpus({.text = {plain, records}, .by_document = true});
  const std::string mark = kRecordSeparator;
  EXPECT_EQ(corpus.separator, mark);
  EXPECT_EQ(corpus.text, "plainone\ntwo" + mark + "é \"three\"" + mark + "four" + mark);
  std::string storage;
  EXPECT_EQ(text_to_learn_from(corpus, storage), "plainone\ntwo\né \"three\"\nfour\n");
  EXPECT_EQ(load_corpus({.text = {records}, .by_document = true, .separator = "|"}).text,
            "one\ntwo|é \"three\"|four|");
  EXPECT_EQ(load_corpus({.text = {plain}, .by_document = true}).separator, "");
  EXPECT_USER_ERROR(load_corpus({.text = {put("e.gz", test::gzip_of(""))}}), "e.gz holds no text");
}

}  // namespace
}  // namespace brrr::io
