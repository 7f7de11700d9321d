// The inputs of models that read texts and pairs of texts: what the library `tokenizers` makes of
// them (tests/golden/make_tokenizer_goldens.py), and by hand what is refused.

#include <gtest/gtest.h>

#include "support/golden_tokenizer.h"
#include "support/models_folder.h"
#include "support/temp_folder.h"
#include "text/tokenizer.h"

namespace brrr::io {
namespace {

using Ids = std::vector<int32_t>;

TEST(ModelInput, MiniLm) {
  const fs::path folder = test::models_folder() / "minilm";
  if (!fs::exists(folder / "tokenizer.json"))
    GTEST_SKIP() << folder << " has no tokenizer.json; $BRRR_MODELS names the folder with minilm";
  const auto tokenizer = load_tokenizer(folder);
  EXPECT_EQ(tokenizer->kind(), "wordpiece");
  EXPECT_EQ(tokenizer->pad_token(), 0);
  EXPECT_EQ(tokenizer->unknown_token(), 100);
  EXPECT_EQ(tokenizer->class_token(), 101);
  EXPECT_EQ(tokenizer->separator_token(), 102);
  EXPECT_EQ(tokenizer->mask_token(), 103);
  EXPECT_EQ(tokenizer->token_id("##ing"), 2075);
  EXPECT_EQ(tokenizer->token_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->input_lengths().longest, 128u);
  EXPECT_EQ(tokenizer->input_lengths().padded, 128u);
  const ModelInput one = tokenizer->model_input("Hello worldings", std::nullopt, 5, true);
  EXPECT_EQ(one.ids, (Ids{101, 7592, 2088, 8613, 102}));
  EXPECT_EQ(one.types, Ids(5, 0));
  EXPECT_EQ(one.words, (Ids{-1, 0, 1, 1, -1}));
  EXPECT_EQ(one.texts, (Ids{-1, 0, 0, 0, -1}));
  EXPECT_EQ(one.left_out, 0u);
  EXPECT_TRUE(one.continues_word(3));
  EXPECT_FALSE(one.continues_word(2) || one.continues_word(1) || one.continues_word(0));
  EXPECT_EQ(tokenizer->decode(one.ids), "[CLS] hello worldings [SEP]");
}

}  // namespace
}  // namespace brrr::io
