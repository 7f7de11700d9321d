// Texts with labels as rows of ids: what transformers makes of them, and by hand what is cut and
// refused.

#include "data/labelled/encode_labelled.h"

#include <gtest/gtest.h>

#include "base/env.h"
#include "support/models_folder.h"
#include "support/random_text.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

/// [CLS] text [SEP], and text [SEP] of type 1. "##" continues a word; what is not known is [UNK].
constexpr std::string_view kSmallBert = R"({
  "version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [
    {"id": 0, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 1, "content": "[UNK]", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 2, "content": "[CLS]", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 3, "content": "[SEP]", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true}],
  "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                 "strip_accents": null, "lowercase": true},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
               {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
    "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
             {"Sequence": {"id": "A", "type_id": 0}},
             {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
             {"Sequence": {"id": "B", "type_id": 1}},
             {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
    "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                       "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
  "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "b": 5, "##c": 6,
                      ".": 7}}
})";

std::unique_ptr<Tokenizer> small_bert() {
  const test::TempFolder folder;
  write_file_atomically(folder / "tokenizer.json", kSmallBert);
  return load_tokenizer(folder.path());
}

LabelledFile labelled(std::string_view text, LabelKind kind = LabelKind::kClasses) {
  return parse_labelled(text, "f.tsv", LabelledFileOptions{.kind = kind});
}

using TokenIds = std::vector<int32_t>;

TEST(EncodeLabelled, RowsAreInputsOfTheModel) {
  const auto tokenizer = small_bert();
  const EncodedFile classes =
      encode_labelled(labelled("text\tlabel\nA bcc.\tx\n\ty\nz\tx\n"), *tokenizer, 8);
  ASSERT_EQ(classes.rows.size(), 3u);
  EXPECT_EQ(classes.rows[0].ids, (TokenIds{2, 4, 5, 6, 6, 7, 3}));
  EXPECT_EQ(classes.rows[1].ids, (TokenIds{2, 3}));
  EXPECT_EQ(classes.rows[2].ids, (TokenIds{2, 1, 3}));
  EXPECT_EQ(classes.rows[1].label, 1);
  EXPECT_TRUE(classes.rows[0].types.empty());
  EXPECT_TRUE(classes.notes.empty());
  const EncodedFile pairs = encode_labelled(
      labelled("sentence1\tsentence2\tscore\na\tb b\t0.5\n", LabelKind::kValues), *tokenizer, 8);
  EXPECT_EQ(pairs.rows[0].ids, (TokenIds{2, 4, 3, 5, 5, 3}));
  EXPECT_EQ(pairs.rows[0].types, (TokenIds{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(pairs.rows[0].values, (std::vector<float>{0.5f}));
  const EncodedFile tags =
      encode_labelled(labelled("ac O\nbcc B-X\n. I-X\n", LabelKind::kTags), *tokenizer, 8);
  EXPECT_EQ(tags.rows[0].ids, (TokenIds{2, 4, 6, 5, 6, 6, 7, 3}));
  EXPECT_EQ(tags.rows[0].tags, (TokenIds{-1, 2, -1, 0, -1, -1, 1, -1}));
}

TEST(EncodeLabelled, WhatIsTooLongIsCutOrRefused) {
  const auto tokenizer = small_bert();
  const LabelledFile file = labelled("text\tlabel\na a a\tx\n\na a a a\ty\na a a a a\tx\n");
  const EncodedFile cut = encode_labelled(file, *tokenizer, 5);
  EXPECT_EQ(cut.cut_rows, 2);
  EXPECT_EQ(cut.rows[2].ids, (TokenIds{2, 4, 4, 4, 3}));
  ASSERT_EQ(cut.notes.size(), 1u);
  EXPECT_EQ(cut.notes[0],
            "f.tsv: 2 of 3 texts are longer than the context of 5 tokens and were truncated");
  EXPECT_EQ(encode_labelled(file, *tokenizer, 7, false).cut_rows, 0);
  EXPECT_USER_ERROR(encode_labelled(file, *tokenizer, 5, false),
                    "f.tsv: line 4: 6 tokens, more than the context of 5");
  EXPECT_USER_ERROR(encode_labelled(file, *tokenizer, 1), "f.tsv: line 2: ");
  // A word that is cut keeps the tag at its first token.
  const LabelledFile words = labelled("a O\nbcc B-X\n", LabelKind::kTags);
  EXPECT_EQ(encode_labelled(words, *tokenizer, 4).rows[0].tags, (TokenIds{-1, 1, 0, -1}));
  // Bytes have no special tokens, so that an empty text has no tokens at all.
  EXPECT_USER_ERROR(
      encode_labelled(labelled("text\tlabel\na\tx\n\ty\n"), *make_byte_tokenizer(), 5),
      "f.tsv: line 3: the text has no tokens");
}

TEST(EncodeLabelled, TheFirstErrorOfManyRowsIsTold) {
  std::string text = "text\tlabel\n";
  for (int i = 0; i < 2000; ++i) text += i % 600 == 599 ? "a a a a\tx\n" : "a\ty\n";
  const auto tokenizer = small_bert();
  EXPECT_USER_ERROR(encode_labelled(labelled(text), *tokenizer, 5, false), "f.tsv: line 601: ");
  const EncodedFile encoded = encode_labelled(labelled(text), *tokenizer, 5);
  EXPECT_EQ(encoded.cut_rows, 3);
  for (size_t i = 0; i < 2000; ++i)
    ASSERT_EQ(encoded.rows[i].ids.size(), i % 600 == 599 ? 5u : 3u) << i;
}

// tests/golden/make_encoded_goldens.py prints these numbers.
TEST(EncodeLabelled, RatedSentencesAsTransformers) {
  const auto data = env::get("BRRR_DATA");
  const fs::path minilm = test::models_folder() / "minilm";
  if (!data || !fs::exists(fs::path(*data) / "sentences"))
    GTEST_SKIP() << "BRRR_DATA names no folder with sentences/";
  if (!fs::exists(minilm / "tokenizer.json"))
    GTEST_SKIP() << minilm << " has no tokenizer.json; $BRRR_MODELS names the folder with minilm";
  const auto tokenizer = load_tokenizer(minilm);
  const LabelledFile file = read_labelled_file(fs::path(*data) / "sentences" / "movies.tsv",
                                               LabelledFileOptions{.kind = LabelKind::kValues});
  LabelledFile pairs = file, tagged = file;
  pairs.has_pairs = true;
  for (size_t i = 0; i + 1 < file.rows.size(); ++i) pairs.rows[i].text2 = file.rows[i + 1].text;
  pairs.rows.pop_back();
  tagged.kind = LabelKind::kTags;
  for (LabelledRow& row : tagged.rows) {
    for (size_t at = 0; at < row.text.size();) {
      const size_t end = std::min(row.text.find(' ', at), row.text.size());
      if (end > at) row.words.push_back(row.text.substr(at, end - at));
      at = end + 1;
    }
    for (size_t word = 0; word < row.words.size(); ++word)
      row.tags.push_back(static_cast<int32_t>(word * word % 7));
  }
  const auto hash_of = [&](const LabelledFile& rows, int64_t context) {
    uint64_t hash = test::kHashStart;
    for (const EncodedRow& row : encode_labelled(rows, *tokenizer, context).rows) {
      hash = test::hash_ids(hash, row.ids);
      TokenIds types = row.types;
      types.resize(row.ids.size());
      hash = test::hash_ids(hash, rows.kind == LabelKind::kTags ? row.tags : types);
    }
    return hash;
  };
  EXPECT_EQ(hash_of(file, 16), 0x3decb8d2076980e5u);
  EXPECT_EQ(hash_of(pairs, 16), 0x8abda31d1f072a04u);
  EXPECT_EQ(hash_of(tagged, 16), 0xcbd9db12b0dcfae7u);
  EXPECT_EQ(hash_of(file, 64), 0x307ea101a191c02eu);
  EXPECT_EQ(hash_of(pairs, 64), 0x3cedcb2de8d744a2u);
  EXPECT_EQ(hash_of(tagged, 64), 0xea2528c48ba41fadu);
}

}  // namespace
}  // namespace brrr::io
