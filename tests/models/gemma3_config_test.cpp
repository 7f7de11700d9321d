// config.json of a Gemma 3: both spellings of its rotary settings, layers, and what is refused.

#include "models/gemma3/gemma3_config.h"

#include <gtest/gtest.h>

#include "formats/json_file.h"
#include "support/temp_folder.h"

namespace brrr::models {
namespace {

constexpr const char* kSizes =
    R"("model_type":"gemma3_text","vocab_size":61,"hidden_size":32,"intermediate_size":48,)"
    R"("num_hidden_layers":7,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":12)";

Gemma3Config parse_gemma(const std::string& more) {
  return parse_gemma3_config(std::string("{") + kSizes + more + "}", "config.json");
}

TEST(Gemma3Config, DefaultsAreThoseOfTheClass) {
  const Gemma3Config c = parse_gemma("");
  EXPECT_EQ(c.max_position_embeddings, 131072);
  EXPECT_EQ(c.query_pre_attn_scalar, 256);
  EXPECT_EQ(c.sliding_window, 4096);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.local_rope.theta, 1e4);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_EQ(c.slides, (std::vector<bool>{true, true, true, true, true, false, true}));
  EXPECT_EQ(c.text_ends().ends, std::vector<int32_t>{1});
}

// gemma-3-270m, by its published config.json.
TEST(Gemma3Config, CountsThePublishedParameters) {
  Gemma3Config c;
  c.vocab_size = 262144;
  c.hidden_size = 640;
  c.intermediate_size = 2048;
  c.num_hidden_layers = 18;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 1;
  EXPECT_EQ(c.model()->parameter_count(), 268'098'176);
}

TEST(Gemma3Config, RotarySettingsInBothSpellings) {
  const Gemma3Config old = parse_gemma(R"(,"rope_theta":500.0,"rope_local_base_freq":50.0,)"
                                       R"("rope_scaling":{"rope_type":"linear","factor":8.0})");
  const Gemma3Config now = parse_gemma(
      R"(,"rope_parameters":{"full_attention":{"rope_type":"linear","rope_theta":500.0,)"
      R"("factor":8.0},"sliding_attention":{"rope_type":"default","rope_theta":50.0}})");
  EXPECT_EQ(old, now);
  EXPECT_EQ(old.rope.factor, 8);
  EXPECT_EQ(old.local_rope.factor, 1);
  EXPECT_EQ(parse_gemma3_config(old.json(), "again"), old);
}

TEST(Gemma3Config, LayersByListOrPattern) {
  const std::vector<bool> thirds{true, true, false, true, true, false, true};
  EXPECT_EQ(parse_gemma(R"(,"sliding_window_pattern":3)").slides, thirds);
  EXPECT_EQ(parse_gemma(R"(,"_sliding_window_pattern":3)").slides, thirds);
  const Gemma3Config c = parse_gemma(
      R"(,"layer_types":["full_attention","sliding_attention","full_attention","full_attention",)"
      R"("full_attention","full_attention","full_attention"])");
  EXPECT_EQ(c.slides, (std::vector<bool>{false, true, false, false, false, false, false}));
  const io::Json written = io::parse_json(c.json(DType::bf16), "written");
  EXPECT_EQ(written["layer_types"][1], "sliding_attention");
  EXPECT_EQ(written["architectures"][0], "Gemma3ForCausalLM");
  EXPECT_EQ(written["hidden_activation"], "gelu_pytorch_tanh");
  EXPECT_EQ(written["dtype"], "bfloat16");
}

TEST(Gemma3Config, KeepsKeysThatItDoesNotKnow) {
  const Gemma3Config c = parse_gemma(R"(,"transformers_version":"5.24.0")");
  EXPECT_EQ(io::parse_json(c.json(), "written")["transformers_version"], "5.24.0");
}

TEST(Gemma3Config, RefusesWhatComputesSomethingElse) {
  EXPECT_USER_ERROR(parse_gemma(R"(,"final_logit_softcapping":30.0)"), "final_logit_softcapping");
  EXPECT_USER_ERROR(parse_gemma(R"(,"use_bidirectional_attention":true)"),
                    "use_bidirectional_attention = true is not supported; expected false");
  EXPECT_USER_ERROR(parse_gemma(R"(,"hidden_activation":"relu")"), "expected gelu_pytorch_tanh");
  EXPECT_USER_ERROR(parse_gemma(R"(,"layer_types":["full_attention"])"), "num_hidden_layers = 7");
  EXPECT_USER_ERROR(parse_gemma(R"(,"layer_types":["chunked_attention"])"), "chunked_attention");
  EXPECT_USER_ERROR(parse_gemma(R"(,"sliding_window_pattern":0)"), "at least 1");
  EXPECT_USER_ERROR(parse_gemma(R"(,"sliding_window":0)"), "sliding_window must be between 1");
  EXPECT_USER_ERROR(
      parse_gemma(
          R"(,"rope_parameters":{"sliding_attention":{"rope_type":"linear","factor":2.0}})"),
      "the rope_type of sliding_attention must be default; got linear");
  EXPECT_USER_ERROR(parse_gemma3_config("{}", "config.json"), "'vocab_size' is missing");
}

}  // namespace
}  // namespace brrr::models
