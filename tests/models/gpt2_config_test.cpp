// The configuration of a GPT-2: config.json both ways, and what is refused.

#include <gtest/gtest.h>

#include "formats/json_file.h"
#include "models/gpt2/gpt2_config.h"
#include "support/temp_folder.h"

namespace brrr::models {
namespace {

constexpr const char* kSmall =
    R"({"model_type":"gpt2","vocab_size":65,"n_positions":16,"n_embd":8,"n_layer":2,"n_head":2)";

Gpt2Config parse(const std::string& text) { return parse_gpt2_config(text, "run/config.json"); }

Gpt2Config small() {
  Gpt2Config c;
  c.vocab_size = 65;
  c.n_positions = 16;
  c.n_embd = 8;
  c.n_layer = 2;
  c.n_head = 2;
  return c;
}

TEST(Gpt2Config, KnownParameterCounts) {
  Gpt2Config c;
  EXPECT_EQ(c.model()->parameter_count(), 124'439'808);
  c.n_embd = 1600, c.n_layer = 48, c.n_head = 25;
  EXPECT_EQ(c.model()->parameter_count(), 1'557'611'200);
  EXPECT_NO_THROW(c.validate());
}

TEST(Gpt2Config, EveryFieldSurvivesTheRoundTrip) {
  Gpt2Config c = small();
  c.resid_pdrop = 0.2, c.embd_pdrop = 0.3, c.attn_pdrop = 0, c.layer_norm_epsilon = 1e-6;
  c.initializer_range = 0.01, c.activation = Activation::gelu, c.tie_word_embeddings = false,
  c.bias = false;
  c.n_inner = 100, c.scale_attn_weights = false, c.scale_attn_by_inverse_layer_idx = true,
  c.reorder_and_upcast_attn = true;
  c.bos_token_id = 3, c.eos_token_id = 64;
  EXPECT_EQ(parse(c.json()), c);
  EXPECT_EQ(parse(Gpt2Config{}.json()), Gpt2Config{});
}

TEST(Gpt2Config, TokensOutsideTheVocabularyAreWrittenAsNone) {
  const Gpt2Config c = small();
  EXPECT_TRUE(io::parse_json(c.json(), "t")["eos_token_id"].is_null());
  EXPECT_EQ(parse(c.json()).eos_token_id, -1);
  EXPECT_TRUE(c.model()->text_ends().ends.empty());
  EXPECT_FALSE(c.model()->text_ends().begin.has_value());
  EXPECT_EQ(Gpt2Config{}.model()->text_ends().ends, std::vector<int32_t>{50256});
}

TEST(Gpt2Config, DefaultsAndUnknownKeys) {
  Gpt2Config c =
      parse(std::string(kSmall) + R"(,"summary_type":"cls_index","task_specific_params":{"a":1}})");
  const io::Json written = io::parse_json(c.json(), "t");
  EXPECT_EQ(written["summary_type"], "cls_index") << "what is not known is kept";
  EXPECT_EQ(written["task_specific_params"]["a"], 1);
  c.unknown_keys.clear();
  EXPECT_EQ(c, small());
  EXPECT_EQ(
      parse(R"({"architectures":["GPT2LMHeadModel"],)" + std::string(kSmall + 21) + "}").n_layer,
      2);
  EXPECT_EQ(
      parse(std::string(kSmall) + R"(,"n_inner":32,"activation_function":"gelu_pytorch_tanh"})")
          .activation,
      Activation::gelu_new);
}

TEST(Gpt2Config, WhatIsWrongIsNamed) {
  const std::string ok = kSmall;
  const std::pair<std::string, const char*> cases[] = {
      {"", "not valid JSON at line 1, column 1: the file is empty"},
      {"{\"model_type\": \"gpt2\",", "the text ends too early"},
      {"[1]", "expected a JSON object with the configuration of a model, found an array"},
      {R"({"model_type":"griffin","hidden_size":8})", "found the string 'griffin'"},
      {R"({"architectures":["T5Model"]})", "found the architecture 'T5Model'"},
      {"{}", "it has neither \"model_type\" (gpt2, "},
      {R"({"model_type":"gpt2"})", "'vocab_size' is missing"},
      {R"({"model_type":"gpt2","vocab_size":"65"})",
       "'vocab_size' must be an integer; found the string '65'"},
      {R"({"model_type":"gpt2","vocab_size":65.5})",
       "'vocab_size' must be an integer; found the number 65.5"},
      {R"({"model_type":"gpt2","vocab_size":18446744073709551615})",
       "'vocab_size' must be an integer"},
      {R"({"model_type":"gpt2","vocab_size":0,"n_positions":1,"n_embd":1,"n_layer":1,"n_head":1})",
       "vocab_size must be between 1 and"},
      {R"({"model_type":"gpt2","vocab_size":9,"n_positions":1,"n_embd":4611686018427387904,"n_layer":1,"n_head":1})",
       "n_embd must be between 1 and 262144; got 4611686018427387904"},
      {R"({"model_type":"gpt2","vocab_size":9,"n_positions":1,"n_embd":8,"n_layer":1,"n_head":3})",
       "run/config.json: [gpt2 config] n_embd must be divisible by n_head; got n_embd 8 and n_head "
       "3"},
      {ok + R"(,"attn_pdrop":1.5})", "attn_pdrop must be a probability in [0, 1); got 1.5"},
      {ok + R"(,"attn_pdrop":"x"})", "'attn_pdrop' must be a number; found the string 'x'"},
      {ok + R"(,"layer_norm_epsilon":0})", "layer_norm_epsilon must be between 0 and 1; got 0"},
      {ok + R"(,"activation_function":"mish"})",
       "activation_function = 'mish' is not supported; expected gelu, gelu_new"},
      {ok + R"(,"tie_word_embeddings":1})",
       "'tie_word_embeddings' must be true or false; found the number 1"},
      {ok + R"(,"n_inner":0})", "n_inner must be positive or null; found 0"},
      {ok + R"(,"n_inner":4611686018427387904})", "n_inner must be between 1 and 1048576"},
      {ok + R"(,"quantization_config":{"bits":4}})", "quantization_config is not supported"},
      {ok + R"(,"scale_attn_by_inverse_layer_idx":"x"})",
       "'scale_attn_by_inverse_layer_idx' must be true or false; found the string 'x'"},
      {ok + R"(,"n_head":4})", "'n_head' appears twice"},
  };
  for (const auto& c : cases) {
    EXPECT_USER_ERROR(parse_config(c.first, "run/config.json"), c.second);
    EXPECT_USER_ERROR(parse_config(c.first, "run/config.json"), "run/config.json");
  }
}

TEST(Gpt2Config, LargestAllowedSizesDoNotOverflow) {
  Gpt2Config c;
  c.vocab_size = c.n_positions = int64_t{1} << 24;
  c.n_embd = int64_t{1} << 18, c.n_layer = 4096, c.n_head = 1;
  c.tie_word_embeddings = false;
  c.validate();
  EXPECT_GT(c.model()->parameter_count(), int64_t{3} << 50);
}

}  // namespace
}  // namespace brrr::models
