// generation_config.json: which tokens end a text and how it is sampled.

#include "folders/generation_settings.h"

#include <gtest/gtest.h>

#include "models/gpt2/gpt2_config.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

models::ModelPtr small_model() {
  models::Gpt2Config c;
  c.vocab_size = 100;
  c.n_embd = 8, c.n_head = 2, c.n_layer = 1, c.n_positions = 8;
  c.bos_token_id = 3, c.eos_token_id = 4;
  return c.model();
}

GenerationSettings read(const test::TempFolder& folder, const std::string& text) {
  write_file_atomically(folder / "generation_config.json", text);
  return read_generation_settings(folder.path(), *small_model());
}

TEST(GenerationSettings, WithoutAFileTheConfigurationCounts) {
  test::TempFolder folder;
  const GenerationSettings s = read_generation_settings(folder.path(), *small_model());
  EXPECT_EQ(s.begin_of_text, 3);
  EXPECT_EQ(s.ends_of_text, std::vector<int32_t>{4});
  EXPECT_FALSE(s.samples || s.temperature || s.top_p || s.top_k);
}

TEST(GenerationSettings, TheFileComesFirst) {
  test::TempFolder folder;
  const GenerationSettings s =
      read(folder, R"({"eos_token_id": [7, 9], "do_sample": true, "temperature": 0.6,
                       "top_p": 0.9, "top_k": 50, "transformers_version": "5"})");
  EXPECT_EQ(s.begin_of_text, 3);
  EXPECT_EQ(s.ends_of_text, (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(s.samples, true);
  EXPECT_EQ(s.temperature, 0.6);
  EXPECT_EQ(s.top_p, 0.9);
  EXPECT_EQ(s.top_k, 50);
  EXPECT_EQ(read(folder, R"({"bos_token_id": 1, "eos_token_id": 2})").begin_of_text, 1);
}

TEST(GenerationSettings, PenaltiesAndStops) {
  test::TempFolder folder;
  const GenerationSettings s = read(
      folder, R"({"min_p": 0.05, "repetition_penalty": 1.5, "stop_strings": ["\n\n", "User:"]})");
  EXPECT_EQ(s.min_p, 0.05);
  EXPECT_EQ(s.repetition_penalty, 1.5);
  EXPECT_EQ(s.stop_strings, (std::vector<std::string>{"\n\n", "User:"}));
  EXPECT_TRUE(s.ignored.empty());
  EXPECT_EQ(read(folder, R"({"stop_strings": "."})").stop_strings, std::vector<std::string>{"."});
}

TEST(GenerationSettings, TheLengthOfAnAnswer) {
  test::TempFolder folder;
  const GenerationSettings s = read(folder, R"({"max_new_tokens": 30, "max_length": 50})");
  EXPECT_EQ(s.max_new_tokens, 30);
  EXPECT_EQ(s.max_length, 50);
  EXPECT_FALSE(read(folder, R"({"max_length": null})").max_length);
}

TEST(GenerationSettings, WhatIsNotDoneIsNamed) {
  test::TempFolder folder;
  const GenerationSettings s = read(
      folder,
      R"({"repetition_penalty": 1.5, "num_beams": 4, "typical_p": 1.0, "min_p": null, "diversity_penalty": 0.5,
                  "bad_words_ids": [], "suppress_tokens": [5], "forced_bos_token_id": 1})");
  EXPECT_EQ(s.ignored, (std::vector<std::string>{"num_beams = 4", "diversity_penalty = 0.5",
                                                 "forced_bos_token_id", "suppress_tokens"}));
}

TEST(GenerationSettings, WhatIsWrongIsNamed) {
  test::TempFolder folder;
  for (const auto& c : std::vector<std::pair<std::string, const char*>>{
           {"[]", "expected a JSON object"},
           {R"({"eos_token_id": 100})", "eos_token_id = 100 lies outside the vocabulary of 100"},
           {R"({"eos_token_id": [1, "x"]})", "'eos_token_id' must be an integer"},
           {R"({"temperature": -1})", "temperature must be from 0 to 100; found -1"},
           {R"({"top_p": "x"})", "'top_p' must be a number"},
           {R"({"top_p": 0})", "top_p must be above 0 and at most 1; found 0"},
           {R"({"min_p": 2})", "min_p must be from 0 to 1; found 2"},
           {R"({"repetition_penalty": 1e-300})",
            "repetition_penalty must be from 0.01 to 100; found 1e-300"},
           {R"({"max_new_tokens": 0})", "max_new_tokens must be from 1 to 1073741824; found 0"},
           {R"({"max_length": -5})", "max_length must be from 1 to 1073741824; found -5"},
           {R"({"stop_strings": ["a", 7]})", "'stop_strings' must be a string"},
           {R"({"top_k": 2.5})", "'top_k' must be an integer"},
           {R"({"top_k": -1})", "top_k must be from 0 to 16777216; found -1"}}) {
    EXPECT_USER_ERROR(read(folder, c.first), c.second);
    EXPECT_USER_ERROR(read(folder, c.first), "generation_config.json");
  }
}

}  // namespace
}  // namespace brrr::io
