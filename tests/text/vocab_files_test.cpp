// vocab.txt of BERT, and vocab.json with merges.txt of RoBERTa: the tokenizers that tokenizer.json
// says in more words, and what is refused.

#include "text/wordpiece/vocab_files.h"

#include <gtest/gtest.h>

#include "support/golden_tokenizer.h"
#include "support/models_folder.h"
#include "support/temp_folder.h"
#include "text/tokenizer.h"

namespace brrr::io {
namespace {

using test::TempFolder;
using Ids = std::vector<int32_t>;

constexpr const char* kVocabTxt =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n##s\nThe\né\n日\n本\n";

TEST(VocabFiles, VocabTxtIsBert) {
  const TempFolder folder, copy;
  write_file_atomically(folder / "vocab.txt", kVocabTxt);
  const auto plain = load_tokenizer(folder.path());
  EXPECT_EQ(plain->kind(), "wordpiece");
  EXPECT_EQ(plain->model_input("The Cats, 日本").ids, (Ids{2, 5, 6, 7, 1, 10, 11, 3}));
  EXPECT_EQ(plain->model_input("the", "cat").types, (Ids{0, 0, 0, 1, 1}));
  EXPECT_EQ(plain->encode("[MASK]cat"), (Ids{4, 6}));
  EXPECT_EQ(plain->decode(Ids{5, 6, 7}), "the cats");
  EXPECT_EQ(plain->mask_token(), -1) << "no configuration names it";
  write_file_atomically(folder / "tokenizer_config.json",
                        R"({"do_lower_case": false, "tokenize_chinese_chars": false,
                            "mask_token": {"content": "[MASK]"}, "strip_accents": false})");
  const auto cased = load_tokenizer(folder.path());
  EXPECT_EQ(cased->encode("The é 日本"), (Ids{8, 9, 1}));
  EXPECT_EQ(cased->mask_token(), 4);
  // Saved, it is a tokenizer.json that says the same.
  cased->save(copy.path());
  EXPECT_TRUE(fs::exists(copy / "tokenizer.json"));
  EXPECT_EQ(load_tokenizer(copy.path())->encode("The é 日本"), (Ids{8, 9, 1}));
  EXPECT_EQ(load_tokenizer(copy.path())->mask_token(), 4);
}

TEST(VocabFiles, OtherLineEndsAndNoLastOne) {
  const Json root =
      bert_tokenizer_json("[UNK]\r\n[CLS]\r\n[SEP]\r\nthe", Json::object(), "vocab.txt");
  EXPECT_EQ(root["model"]["vocab"]["the"], 3);
  EXPECT_EQ(root["added_tokens"].size(), 3u);
}

TEST(VocabFiles, WhatIsRefused) {
  const auto bert = [](std::string_view text, const Json& config = Json::object()) {
    return bert_tokenizer_json(text, config, "vocab.txt");
  };
  EXPECT_USER_ERROR(bert("a\nb\na\n"), "vocab.txt: line 3: the token 'a' is listed twice");
  EXPECT_USER_ERROR(bert("a\n\xff\n"), "vocab.txt: it is not UTF-8 at byte 2");
  EXPECT_USER_ERROR(bert("[UNK]\n[CLS]\n"), "vocab.txt: it has no token '[SEP]'");
  EXPECT_USER_ERROR(bert("[CLS]\n[SEP]\n", {{"do_lower_case", 1}}),
                    "has \"do_lower_case\" as the number 1; expected true or false");
  const auto roberta = [](std::string_view vocab, std::string_view merges) {
    return roberta_tokenizer_json(vocab, merges, Json::object(), "vocab.json", "merges.txt");
  };
  EXPECT_USER_ERROR(roberta("[]", ""), "vocab.json: it holds an array");
  EXPECT_USER_ERROR(roberta("{}", "a b c\n"), "merges.txt: line 1: expected two tokens");
  EXPECT_USER_ERROR(roberta("{}", "a \xff\n"), "merges.txt: it is not UTF-8 at byte 2");
  EXPECT_USER_ERROR(roberta("{}", ""), "vocab.json: it has no token '</s>'");
  EXPECT_USER_ERROR(roberta(R"({"<s>": 0, "</s>": "1"})", ""),
                    "vocab.json: the id of token '</s>' is the string '1'");
  const TempFolder folder;
  write_file_atomically(folder / "vocab.txt", kVocabTxt);
  write_file_atomically(folder / "tokenizer_config.json", "[]");
  EXPECT_USER_ERROR(load_tokenizer(folder.path()), "it holds an array; expected an object");
}

// The byte-level case of tokenizer_cases.json with RoBERTa's special tokens behind it.
TEST(VocabFiles, RobertaByItsConfig) {
  const Json all = test::read_golden("tokenizer_cases.json");
  Json vocab = all["models"]["bytes"]["vocab"];
  const auto size = static_cast<int32_t>(vocab.size());
  for (const char* name : {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}) {
    const auto id = static_cast<int32_t>(vocab.size());
    vocab[name] = id;
  }
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : all["models"]["bytes"]["merges"])
    merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  const TempFolder folder;
  write_file_atomically(folder / "vocab.json", vocab.dump());
  write_file_atomically(folder / "merges.txt", merges);
  write_file_atomically(folder / "config.json", R"({"model_type": "gpt2"})");
  const auto gpt2 = load_tokenizer(folder.path());
  const Ids text = gpt2->encode(" the cat");
  EXPECT_EQ(gpt2->model_input(" the cat").ids, text);
  write_file_atomically(folder / "config.json", R"({"model_type": "roberta"})");
  const auto roberta = load_tokenizer(folder.path());
  Ids framed = {size};
  framed.insert(framed.end(), text.begin(), text.end());
  framed.push_back(size + 2);
  EXPECT_EQ(roberta->model_input(" the cat").ids, framed);
  EXPECT_EQ(roberta->model_input("a", "b").types, Ids(6, 0));
  EXPECT_EQ(roberta->encode("a <mask>"), (Ids{gpt2->encode("a")[0], size + 4}))
      << "takes the space";
  EXPECT_EQ(roberta->decode(text), " the cat");
  fs::remove(folder / "config.json");
  write_file_atomically(folder / "tokenizer_config.json",
                        R"({"tokenizer_class": "RobertaTokenizerFast", "mask_token": "<mask>"})");
  EXPECT_EQ(load_tokenizer(folder.path())->mask_token(), size + 4);
}

TEST(VocabFiles, MiniLmByItsVocabTxt) {
  const fs::path models = test::models_folder() / "minilm";
  if (!fs::exists(models / "tokenizer.json") || !fs::exists(models / "vocab.txt"))
    GTEST_SKIP() << models << " has no tokenizer.json and vocab.txt; $BRRR_MODELS names the folder";
  const TempFolder folder;
  for (const char* name : {"vocab.txt", "tokenizer_config.json", "special_tokens_map.json"})
    write_file_atomically(folder / name, read_file(models / name));
  const auto whole = load_tokenizer(models), plain = load_tokenizer(folder.path());
  for (uint32_t i = 0; i < 300; ++i) {
    const std::string text = test::random_text(i);
    ASSERT_EQ(plain->model_input(text).ids, whole->model_input(text).ids) << i;
  }
  EXPECT_EQ(plain->mask_token(), whole->mask_token());
}

}  // namespace
}  // namespace brrr::io
