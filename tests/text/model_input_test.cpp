// The inputs of models that read texts and pairs of texts: what the library `tokenizers` makes of
// them (tests/golden/make_tokenizer_goldens.py), and by hand what is refused.

#include <gtest/gtest.h>

#include "formats/json_file.h"
#include "support/golden_tokenizer.h"
#include "support/long_proof.h"
#include "support/models_folder.h"
#include "support/temp_folder.h"
#include "text/tokenizer.h"

namespace brrr::io {
namespace {

using Ids = std::vector<int32_t>;

std::vector<std::string> strings(const Json& json) { return json.get<std::vector<std::string>>(); }

/// The input of [strategy, direction, first, second, longest, ...] in tokenizer_cases.json.
ModelInput input_of(const Tokenizer& tokenizer, const Json& item) {
  std::optional<size_t> longest;
  if (!item[4].is_null()) longest = item[4].get<size_t>();
  if (!item[2].is_array()) {
    const auto first = item[2].get<std::string>();
    const std::string second = item[3].is_null() ? "" : item[3].get<std::string>();
    std::optional<std::string_view> other;
    if (!item[3].is_null()) other = second;
    return tokenizer.model_input(first, other, longest, true);
  }
  const std::vector<std::string> first = strings(item[2]),
                                 second = strings(item[3].is_null() ? Json::array() : item[3]);
  const std::vector<std::string_view> first_views(first.begin(), first.end()),
      second_views(second.begin(), second.end());
  std::optional<Tokenizer::Words> other;
  if (!item[3].is_null()) other = second_views;
  return tokenizer.model_input_of_words(first_views, other, longest);
}

TEST(ModelInput, AsTheLibraryMakesThem) {
  const Json all = test::read_golden("tokenizer_cases.json");
  ASSERT_GT(all["inputs"].size(), 5u);
  for (const Json& of_case : all["inputs"]) {
    const auto name = of_case["name"].get<std::string>();
    Json root;
    for (const Json& item : all["cases"])
      if (item["name"] == name) root = test::tokenizer_json_of(all, item);
    const auto results = of_case["results"].get<std::vector<Json>>();
    for (const Json& item : test::sampled_if_sanitized(results, 20, name)) {
      // 5 tokens are what the file says; the test asks for other lengths.
      const bool left = item[1] == "left";
      const std::string strategy = item[0] == "longest_first" ? "LongestFirst"
                                   : item[0] == "only_first"  ? "OnlyFirst"
                                                              : "OnlySecond";
      root["truncation"] = {{"max_length", 5},
                            {"strategy", strategy},
                            {"stride", 0},
                            {"direction", left ? "Left" : "Right"}};
      const auto tokenizer = test::tokenizer_of(root);
      const std::string where = name + ": " + item.dump();
      if (item[5] == 0) {
        EXPECT_USER_ERROR(input_of(*tokenizer, item), "tokens must be truncated");
        continue;
      }
      const ModelInput input = input_of(*tokenizer, item);
      ASSERT_EQ(input.ids, item[5][0].get<Ids>()) << where;
      ASSERT_EQ(input.types, item[5][1].get<Ids>()) << where;
      ASSERT_EQ(input.words, item[5][2].get<Ids>()) << where;
      ASSERT_EQ(input.texts, item[5][3].get<Ids>()) << where;
      ASSERT_EQ(input.left_out, item[5][4].get<size_t>()) << where;
      if (item[2].is_array()) continue;
      const auto first = item[2].get<std::string>();
      if (!item[4].is_null() || !item[3].is_null()) continue;
      const ModelInput plain = tokenizer->model_input(first);
      ASSERT_EQ(plain.ids, input.ids) << where;
      ASSERT_TRUE(plain.words.empty() && plain.texts.empty()) << where;
    }
  }
}

TEST(ModelInput, WhatIsRefused) {
  const auto bert = test::golden_tokenizer("bert");
  EXPECT_USER_ERROR(bert->model_input("the", "cat", 2), "the limit is 2 tokens, but the");
  EXPECT_EQ(bert->model_input("the", "cat", 3).ids.size(), 3u);
  Json root;
  const Json all = test::read_golden("tokenizer_cases.json");
  for (const Json& item : all["cases"])
    if (item["name"] == "template with types") root = test::tokenizer_json_of(all, item);
  root["post_processor"].erase("pair");
  EXPECT_EQ(test::tokenizer_of(root)->model_input("the").ids.size(), 4u);
  EXPECT_USER_ERROR(test::tokenizer_of(root)->model_input("the", "cat"), "has no \"pair\"");
  const Json once = root["post_processor"];
  root["post_processor"] = {{"type", "Sequence"}, {"processors", {once, once}}};
  EXPECT_USER_ERROR(test::tokenizer_of(root),
                    "processors[1]: TemplateProcessing is the second post-processor");
}

TEST(ModelInput, TokenizersWithoutFiles) {
  const auto bytes = make_byte_tokenizer();
  const ModelInput input = bytes->model_input("ab", "c", 2);
  EXPECT_EQ(input.ids, (Ids{'a', 'c'}));
  EXPECT_EQ(input.types, (Ids{0, 1}));
  EXPECT_EQ(input.left_out, 1u);
  EXPECT_EQ(bytes->mask_token(), -1);
  EXPECT_EQ(bytes->token_id("a"), 'a');
  EXPECT_EQ(bytes->token_id("ab"), std::nullopt);
}

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
