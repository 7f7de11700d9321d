// Learning WordPiece from a text.

#include <gtest/gtest.h>

#include <set>

#include "support/temp_folder.h"
#include "text/tokenizer.h"

namespace brrr::io {
namespace {

const std::string& sample() {
  static const std::string text = [] {
    std::string t;
    for (int i = 0; i < 300; ++i)
      t += "The cat number " + std::to_string(i * i % 97) +
           " sat; the bat's hat, that caf\xc3\xa9 and a mat.\n";
    return t;
  }();
  return text;
}

std::string name_of_id(const Tokenizer& tokenizer, int32_t id) {
  return tokenizer.decode(std::span(&id, 1));
}

TEST(WordPieceTraining, SpecialTokensComeFirst) {
  const auto tokenizer = train_wordpiece(sample(), 70);
  EXPECT_EQ(tokenizer->kind(), "wordpiece");
  EXPECT_EQ(tokenizer->vocab_size(), 70);
  EXPECT_EQ(tokenizer->pad_token(), 0);
  EXPECT_EQ(tokenizer->unknown_token(), 1);
  EXPECT_EQ(tokenizer->class_token(), 2);
  EXPECT_EQ(tokenizer->separator_token(), 3);
  EXPECT_EQ(tokenizer->mask_token(), 4);
  EXPECT_EQ(name_of_id(*tokenizer, 4), "[MASK]");
  for (int32_t id = 0; id < 70; ++id) EXPECT_EQ(tokenizer->is_special(id), id < 5) << id;
  const ModelInput input = tokenizer->model_input("the cat", std::string_view("sat"));
  EXPECT_EQ(input.ids.front(), 2);
  EXPECT_EQ(input.ids.back(), 3);
  EXPECT_EQ(input.types.back(), 1);
}

TEST(WordPieceTraining, FrequentPairsAreMerged) {
  const auto tokenizer = train_wordpiece(sample(), 72);
  EXPECT_TRUE(tokenizer->token_id("##at")) << "pairs that continue are apart from beginnings";
  for (const char* word : {"the", "cat", "that", "number"})
    EXPECT_EQ(tokenizer->encode(word).size(), 1u) << word;
  // Small letters without accents, and punctuation apart.
  EXPECT_EQ(tokenizer->encode("The, CAT"), tokenizer->encode("the , cat"));
  EXPECT_EQ(tokenizer->encode("caf\xc3\xa9"), tokenizer->encode("cafe"));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("that bat")), "that bat");
  // A character that the text does not have.
  EXPECT_EQ(tokenizer->encode("\xd0\xb4"), std::vector<int32_t>{1});
}

TEST(WordPieceTraining, IsAFunctionOfTheText) {
  const auto first = train_wordpiece(sample(), 72), second = train_wordpiece(sample(), 72);
  std::set<std::string> names;
  for (int32_t id = 0; id < 72; ++id) {
    EXPECT_EQ(name_of_id(*first, id), name_of_id(*second, id));
    names.insert(name_of_id(*first, id));
  }
  const test::TempFolder folder;
  first->save(folder.path());
  const auto read = load_tokenizer(folder.path());
  EXPECT_EQ(read->kind(), "wordpiece");
  EXPECT_EQ(read->mask_token(), 4);
  for (const char* text : {"The cats' hats", "that, sat! [MASK] x"})
    EXPECT_EQ(read->model_input(text).ids, first->model_input(text).ids) << text;
}

TEST(WordPieceTraining, RefusesWhatTheTextDoesNotGive) {
  EXPECT_NE(test::user_error_of([] { train_wordpiece(sample(), 5000); }).find("ask for "),
            std::string::npos);
  EXPECT_NE(test::user_error_of([] { train_wordpiece(sample(), 6); }).find("too small"),
            std::string::npos);
  EXPECT_NE(test::user_error_of([] { train_wordpiece("", 100); }).find("ask for 5"),
            std::string::npos);
}

}  // namespace
}  // namespace brrr::io
