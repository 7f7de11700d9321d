// The configuration of GPT-NeoX: config.json in both spellings, what is refused, and the options of
// a new model.

#include <gtest/gtest.h>

#include <algorithm>

#include "formats/json_file.h"
#include "models/gpt_neox/gpt_neox_config.h"
#include "support/temp_folder.h"

namespace brrr::models {
namespace {

std::string neox_text(const std::string& more) {
  return R"({"model_type":"gpt_neox","vocab_size":65,"hidden_size":32,"intermediate_size":48,)"
         R"("num_hidden_layers":3,"num_attention_heads":4)" +
         more + "}";
}
GptNeoxConfig parse_neox(const std::string& more) {
  return parse_gpt_neox_config(neox_text(more), "run/config.json");
}

TEST(GptNeoxConfig, KnownParameterCounts) {
  GptNeoxConfig c;
  EXPECT_EQ(c.model()->parameter_count(), 20'554'567'680);  // GPT-NeoX-20B
  c.vocab_size = 50304, c.hidden_size = 512, c.intermediate_size = 2048;
  c.num_hidden_layers = 6, c.num_attention_heads = 8;
  EXPECT_EQ(c.model()->parameter_count(), 70'426'624);  // Pythia 70M
}

TEST(GptNeoxConfig, DefaultsAreThoseOfTransformers) {
  const GptNeoxConfig c = parse_neox("");
  EXPECT_EQ(c.max_position_embeddings, 2048);
  EXPECT_EQ(c.hidden_act, Activation::gelu);
  EXPECT_TRUE(c.use_parallel_residual);
  EXPECT_TRUE(c.attention_bias);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.rope.theta, 10000);
  EXPECT_EQ(c.rotated_width(), 2);
  const TextEnds ends = c.model()->text_ends();
  EXPECT_EQ(ends.begin, 0);
  EXPECT_EQ(ends.ends, std::vector<int32_t>{2});
  const TextEnds none =
      parse_neox(R"(,"bos_token_id":null,"eos_token_id":null)").model()->text_ends();
  EXPECT_FALSE(none.begin);
  EXPECT_TRUE(none.ends.empty());
}

TEST(GptNeoxConfig, BothSpellingsOfRotarySettingsMeanTheSame) {
  const GptNeoxConfig old = parse_neox(R"(,"rotary_pct":0.5,"rotary_emb_base":1234)");
  EXPECT_EQ(old.rope.theta, 1234);
  EXPECT_EQ(old.rotated_width(), 4);
  for (
      const char* same :
      {R"(,"partial_rotary_factor":0.5,"rope_theta":1234)",
       R"(,"rope_parameters":{"rope_type":"default","rope_theta":1234,"partial_rotary_factor":0.5})",
       R"(,"rotary_pct":1.0,"rope_parameters":{"rope_theta":1234,"partial_rotary_factor":0.5})"})
    EXPECT_EQ(parse_neox(same), old) << same;
  const GptNeoxConfig scaled = parse_neox(
      R"(,"rotary_pct":0.5,"rotary_emb_base":1234,"rope_scaling":{"type":"linear","factor":2})");
  EXPECT_EQ(scaled.rope.kind, RopeConfig::Kind::linear);
  EXPECT_EQ(scaled.rope.theta, 1234);
  EXPECT_EQ(scaled.rotated_width(), 4);
}

TEST(GptNeoxConfig, EveryFieldSurvivesTheRoundTrip) {
  for (
      const char* rope :
      {"", R"(,"rotary_pct":1,"rotary_emb_base":500.5)",
       R"(,"rope_scaling":{"rope_type":"dynamic","factor":2})",
       R"(,"rope_parameters":{"rope_type":"yarn","rope_theta":99.0,"factor":4,"partial_rotary_factor":0.5})"})
    for (const char* activation : {"gelu", "gelu_fast", "relu", "swish"}) {
      const GptNeoxConfig c = parse_neox(
          std::string(rope) + R"(,"hidden_act":")" + activation +
          R"(","max_position_embeddings":77,"use_parallel_residual":false,"attention_bias":false,"tie_word_embeddings":true,"layer_norm_eps":1e-6,"initializer_range":0.5,"attention_dropout":0.25,"hidden_dropout":0.125,"bos_token_id":null,"eos_token_id":[3,5],"classifier_dropout":0.1)");
      EXPECT_EQ(parse_gpt_neox_config(c.json(), "again"), c) << rope << activation;
      const io::Json written = io::parse_json(c.json(DType::bf16), "written");
      EXPECT_EQ(written["classifier_dropout"], 0.1) << "what is not known is kept";
      EXPECT_EQ(written["dtype"], "bfloat16");
      EXPECT_FALSE(written.contains("rope_parameters")) << "one spelling is written";
    }
}

TEST(GptNeoxConfig, WhatIsNotSupportedIsNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {R"({"model_type":"gpt_neox"})", "'vocab_size' is missing"},
      {neox_text(R"(,"hidden_act":"quick_gelu")"),
       "hidden_act = 'quick_gelu' is not supported; expected gelu, gelu_new"},
      {R"({"model_type":"gpt_neox","vocab_size":65,"hidden_size":34,"intermediate_size":48,)"
       R"("num_hidden_layers":3,"num_attention_heads":4})",
       "hidden_size must be a multiple of num_attention_heads 4; got 34"},
      {neox_text(R"(,"head_dim":16)"), "head_dim = 16 is not supported"},
      {neox_text(R"(,"rotary_pct":0.4)"), "must be even and at least 2; got 3 of 8"},
      {neox_text(R"(,"rotary_pct":0.2)"), "must be even and at least 2; got 1 of 8"},
      {neox_text(R"(,"rotary_pct":1.5)"), "partial_rotary_factor must be above 0 and at most 1"},
      {neox_text(R"(,"rope_scaling":{"rope_type":"longrope","factor":4})"),
       "rope_type must be default, linear, dynamic, llama3 or yarn; found 'longrope'"},
      {neox_text(R"(,"quantization_config":{"bits":4})"), "quantization_config"},
      {neox_text(R"(,"layer_norm_eps":0)"), "layer_norm_eps must be between 0 and 1; got 0"},
      {neox_text(R"(,"hidden_dropout":1)"),
       "hidden_dropout must be a probability in [0, 1); got 1"},
      {neox_text(R"(,"use_parallel_residual":1)"), "'use_parallel_residual' must be true or false"},
  };
  for (const auto& c : cases) {
    EXPECT_USER_ERROR(parse_config(c.first, "run/config.json"), c.second);
    EXPECT_USER_ERROR(parse_config(c.first, "run/config.json"), "run/config.json");
  }
}

TEST(GptNeoxModel, IsDescribedByItsOptions) {
  const Architecture& a = find_architecture("gpt_neox");
  Description d;
  d.settings = {{"n-layer", "2"},
                {"n-embd", "64"},
                {"hidden-act", "silu"},
                {"rotary-pct", "0.5"},
                {"use-parallel-residual", "false"},
                {"attention-bias", "false"}};
  d.vocabulary = 65, d.context = 32, d.dropout = 0.1;
  const ModelPtr model = a.describe(d);
  const io::Json json = io::parse_json(model->config_json(DType::f32), "written");
  EXPECT_EQ(json["intermediate_size"], 256);
  EXPECT_EQ(json["rotary_pct"], 0.5);
  EXPECT_EQ(json["hidden_dropout"], 0.1);
  EXPECT_TRUE(model->text_ends().ends.empty()) << "the tokenizer knows, if any";
  Description again = d;
  again.settings = model->settings();
  EXPECT_EQ(a.describe(again)->config_json(DType::f32), model->config_json(DType::f32));
  d.settings = {{"rotary-pct", "0.1"}};
  EXPECT_USER_ERROR(a.describe(d), "rotary-pct must leave an even number of columns");
  d.settings = {{"n-head", "5"}};
  EXPECT_USER_ERROR(a.describe(d), "n-embd must be divisible by n-head");
}

// Dropout has a stream of its own at every place.
TEST(GptNeoxModel, StreamsOfDropoutDiffer) {
  const Graph g = parse_neox("").model()->with_dropout(0.1)->loss(2, 8);
  std::vector<int64_t> streams;
  for (const Node& node : g.nodes())
    if (node.attrs.find("stream") != nullptr) streams.push_back(node.attrs.get<int64_t>("stream"));
  EXPECT_EQ(streams.size(), 1u + 3 * 3);
  std::sort(streams.begin(), streams.end());
  EXPECT_EQ(std::unique(streams.begin(), streams.end()), streams.end());
}

}  // namespace
}  // namespace brrr::models
