// The configuration of the Llama family: config.json in both spellings, and what is refused.

#include <gtest/gtest.h>

#include <cmath>

#include "formats/json_file.h"
#include "models/llama/llama_config.h"
#include "support/temp_folder.h"

namespace brrr::models {
namespace {

constexpr const char* kLlamaBase =
    R"("vocab_size":65,"hidden_size":16,"intermediate_size":24,"num_hidden_layers":3,"num_attention_heads":4)";

std::string llama_text(const std::string& more, const std::string& type = "llama") {
  return R"({"model_type":")" + type + "\"," + kLlamaBase + more + "}";
}
LlamaConfig parse_llama(const std::string& more, const std::string& type = "llama") {
  return parse_llama_config(llama_text(more, type), "run/config.json");
}

TEST(LlamaConfig, KnownParameterCounts) {
  LlamaConfig c;
  EXPECT_EQ(c.model()->parameter_count(), 6'738'415'616);  // Llama 2 7B
  c.vocab_size = 128256, c.hidden_size = 2048, c.intermediate_size = 8192;
  c.num_hidden_layers = 16, c.num_key_value_heads = 8, c.head_dim = 64;
  c.tie_word_embeddings = true;
  EXPECT_EQ(c.model()->parameter_count(), 1'235'814'400);  // Llama 3.2 1B
  c.vocab_size = 49152, c.hidden_size = 576, c.intermediate_size = 1536;
  c.num_hidden_layers = 30, c.num_attention_heads = 9, c.num_key_value_heads = 3;
  EXPECT_EQ(c.model()->parameter_count(), 134'515'008);  // SmolLM 135M
}

TEST(LlamaConfig, DefaultsAreThoseOfTransformers) {
  const LlamaConfig llama = parse_llama("");
  EXPECT_EQ(llama.num_key_value_heads, 4);
  EXPECT_EQ(llama.head_dim, 4);
  EXPECT_EQ(llama.max_position_embeddings, 2048);
  EXPECT_FALSE(llama.tie_word_embeddings);
  EXPECT_EQ(parse_llama(R"(,"num_key_value_heads":2)", "mistral").window_of(0), 4096);
  EXPECT_EQ(
      parse_llama(R"(,"num_key_value_heads":2,"sliding_window":null)", "mistral").window_of(0), 0);
  const LlamaConfig qwen2 = parse_llama(R"(,"num_key_value_heads":2)", "qwen2");
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_EQ(qwen2.window_of(2), 0) << "use_sliding_window is false";
  const LlamaConfig qwen3 = parse_llama(R"(,"num_key_value_heads":2)", "qwen3");
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_TRUE(qwen3.qk_norm);
}

TEST(LlamaConfig, WindowsOfLayers) {
  const char* window = R"(,"num_key_value_heads":2,"use_sliding_window":true,"sliding_window":7)";
  const LlamaConfig by_number =
      parse_llama(window + std::string(R"(,"max_window_layers":2)"), "qwen2");
  EXPECT_EQ(by_number.window_of(1), 0);
  EXPECT_EQ(by_number.window_of(2), 7);
  const LlamaConfig by_list = parse_llama(
      window +
          std::string(R"(,"layer_types":["sliding_attention","full_attention","full_attention"])"),
      "qwen3");
  EXPECT_EQ(by_list.window_of(0), 7);
  EXPECT_EQ(by_list.window_of(1), 0);
}

TEST(LlamaConfig, EveryFieldSurvivesTheRoundTrip) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"})
    for (
        const char* rope :
        {"", R"(,"rope_theta":500.5)", R"(,"rope_scaling":{"type":"linear","factor":2})",
         R"(,"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":64})",
         R"(,"rope_parameters":{"rope_type":"yarn","rope_theta":99.0,"factor":4,"mscale":0.7,"mscale_all_dim":0.5,"truncate":false})"}) {
      const LlamaConfig c = parse_llama(
          std::string(rope) +
              R"(,"num_key_value_heads":2,"head_dim":6,"tie_word_embeddings":true,"eos_token_id":[3,5],"bos_token_id":1,"use_sliding_window":true,"sliding_window":9,"max_window_layers":1,"attention_dropout":0.25,"pad_token_id":4)",
          type);
      EXPECT_EQ(parse_llama_config(c.json(), "again"), c) << type << rope;
      const io::Json written = io::parse_json(c.json(DType::bf16), "written");
      EXPECT_EQ(written["pad_token_id"], 4) << "what is not known is kept";
      EXPECT_EQ(written["dtype"], "bfloat16");
      EXPECT_FALSE(written.contains("rope_parameters")) << "one spelling is written";
    }
}

TEST(LlamaConfig, BothSpellingsOfRopeMeanTheSame) {
  const LlamaConfig old = parse_llama(
      R"(,"rope_theta":1234.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64})");
  const LlamaConfig now = parse_llama(
      R"(,"rope_parameters":{"rope_theta":1234.0,"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64})");
  EXPECT_EQ(old, now);
  EXPECT_EQ(now.rope.theta, 1234);
}

TEST(LlamaConfig, DynamicRopeEndsAtTheTrainedLength) {
  const LlamaConfig c = parse_llama(
      R"(,"max_position_embeddings":64,"rope_scaling":{"rope_type":"dynamic","factor":4,"original_max_position_embeddings":16})");
  EXPECT_EQ(c.model()->sizes().context, 16);
}

TEST(LlamaConfig, WhatIsNotSupportedIsNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {R"({"model_type":"llama"})", "'vocab_size' is missing"},
      {llama_text(R"(,"hidden_act":"gelu")"),
       "hidden_act = 'gelu' is not supported; expected silu, swish"},
      {llama_text(R"(,"pretraining_tp":2)"), "pretraining_tp = 2 is not supported"},
      {llama_text(R"(,"partial_rotary_factor":0.5)"), "partial_rotary_factor must be 1; got 0.5"},
      {llama_text(R"(,"quantization_config":{"bits":4})"), "quantization_config"},
      {llama_text(R"(,"rope_scaling":{"rope_type":"longrope","factor":4})"),
       "rope_type must be default, linear, dynamic, llama3 or yarn; found 'longrope'"},
      {llama_text(R"(,"rope_scaling":{"rope_type":"linear"})"), "'factor' is missing"},
      {llama_text(R"(,"rope_scaling":[1])"), "'rope_scaling' must be an object"},
      {llama_text(R"(,"rope_scaling":{"rope_type":"linear","factor":0.5})"),
       "the rope factor must be from 1 to 1e6; got 0.5"},
      {llama_text(
           R"(,"rope_parameters":{"full_attention":{"rope_type":"default","rope_theta":1e6}})"),
       "rope_parameters: settings of its own for a kind of layer ('full_attention')"},
      {llama_text(R"(,"rope_scaling":{"rope_type":"yarn","factor":4,"attention_factor":1e300})"),
       "attention_factor must be from 0 to 1e6; got 1e+300"},
      {llama_text(R"(,"rope_scaling":{"rope_type":"yarn","factor":4,"mscale":-1})"),
       "mscale must be from 0 to 1e6; got -1"},
      {llama_text(R"(,"num_key_value_heads":2,"sliding_window":0)", "mistral"),
       "sliding_window must be positive or null; found 0"},
      {llama_text(R"(,"num_key_value_heads":2,"use_sliding_window":true,"sliding_window":-1)",
                  "qwen3"),
       "sliding_window must be positive or null; found -1"},
      {llama_text(R"(,"num_key_value_heads":3)"),
       "num_attention_heads must be a multiple of num_key_value_heads 3; got 4"},
      {llama_text(R"(,"head_dim":5)"), "head_dim must be even"},
      {llama_text(R"(,"num_experts":4)"), "num_experts is not supported"},
      {llama_text(
           R"(,"num_key_value_heads":2,"use_sliding_window":true,"layer_types":["chunked_attention"])",
           "qwen2"),
       "layer_types may hold full_attention and sliding_attention; found 'chunked_attention'"},
      {llama_text(
           R"(,"num_key_value_heads":2,"use_sliding_window":true,"layer_types":["full_attention"])",
           "qwen2"),
       "layer_types must be a list of num_hidden_layers = 3 entries; got 1"},
      {llama_text(R"(,"rms_norm_eps":0)"), "rms_norm_eps must be between 0 and 1; got 0"},
      {llama_text(R"(,"attention_bias":1)"), "'attention_bias' must be true or false"},
  };
  for (const auto& c : cases) {
    EXPECT_USER_ERROR(parse_config(c.first, "run/config.json"), c.second);
    EXPECT_USER_ERROR(parse_config(c.first, "run/config.json"), "run/config.json");
  }
}

TEST(LlamaConfig, FrequenciesAreThoseOfThePapers) {
  RopeConfig c;
  const auto plain = rope_frequencies(c, 8).radians_per_position;
  ASSERT_EQ(plain.size(), 4u);
  EXPECT_EQ(plain[0], 1);
  EXPECT_DOUBLE_EQ(plain[2], std::pow(10000.0, -0.5));
  c.kind = RopeConfig::Kind::linear, c.factor = 4;
  EXPECT_DOUBLE_EQ(rope_frequencies(c, 8).radians_per_position[2], plain[2] / 4);
  c.kind = RopeConfig::Kind::yarn, c.original_context = 64;
  const RopeFrequencies yarn = rope_frequencies(c, 8);
  EXPECT_EQ(yarn.radians_per_position[0], 1) << "fast turns stay";
  EXPECT_DOUBLE_EQ(yarn.radians_per_position[3], plain[3] / 4) << "slow ones are interpolated";
  EXPECT_DOUBLE_EQ(yarn.scale, 0.1 * std::log(4.0) + 1);
}

}  // namespace
}  // namespace brrr::models
