// config.json of a ModernBERT: the spellings of two versions of transformers, layers, tasks, and
// what is refused.

#include "models/modernbert/modernbert_config.h"

#include <gtest/gtest.h>

#include "formats/json_file.h"
#include "support/temp_folder.h"

namespace brrr::models {
namespace {

constexpr const char* kModernSizes =
    R"("model_type":"modernbert","vocab_size":61,"hidden_size":32,"intermediate_size":48,)"
    R"("num_hidden_layers":7,"num_attention_heads":4,"pad_token_id":0,"bos_token_id":1,"eos_token_id":2)";

ModernBertConfig parse_modern(const std::string& more) {
  return parse_modernbert_config(std::string("{") + kModernSizes + more + "}", "config.json");
}

TEST(ModernBertConfig, DefaultsAreThoseOfTheClass) {
  const ModernBertConfig c = parse_modern("");
  EXPECT_EQ(c.sizes().context, 8192);
  EXPECT_FALSE(c.sizes().causal);
  EXPECT_EQ(c.local_attention, 128);
  EXPECT_EQ(c.global_rope.theta, 160000);
  EXPECT_EQ(c.local_rope.theta, 10000);
  EXPECT_TRUE(c.tie_word_embeddings && c.decoder_bias);
  EXPECT_EQ(c.classifier_pooling, ClassifierPooling::cls);
  EXPECT_EQ(c.task.head, Head::embedding);
  std::vector<bool> slides;
  for (int64_t i = 0; i < 7; ++i) slides.push_back(c.slides_in(i));
  EXPECT_EQ(slides, (std::vector<bool>{false, true, true, false, true, true, false}));
}

// answerdotai/ModernBERT-base and -large, by transformers' ModernBertForMaskedLM and
// ModernBertForSequenceClassification of two classes.
TEST(ModernBertConfig, CountsThePublishedParameters) {
  ModernBertConfig c;
  EXPECT_EQ(c.model()->parameter_count(), 149'655'232);
  c.task = {.head = Head::classes, .labels = {"a", "b"}};
  EXPECT_EQ(c.model()->parameter_count(), 149'606'402);
  c.hidden_size = 1024, c.intermediate_size = 2624;
  c.num_hidden_layers = 28, c.num_attention_heads = 16;
  EXPECT_EQ(c.model()->parameter_count(), 395'833'346);
}

TEST(ModernBertConfig, RotarySettingsInBothSpellings) {
  const ModernBertConfig old =
      parse_modern(R"(,"global_rope_theta":500.0,"local_rope_theta":50.0)");
  const ModernBertConfig now = parse_modern(
      R"(,"rope_parameters":{"full_attention":{"rope_type":"default","rope_theta":500.0},)"
      R"("sliding_attention":{"rope_type":"default","rope_theta":50.0}})");
  EXPECT_EQ(old, now);
  EXPECT_EQ(old.global_rope.theta, 500);
  EXPECT_EQ(parse_modernbert_config(old.json(), "again"), old);
}

TEST(ModernBertConfig, LayersByListOrPattern) {
  const std::string full = R"("full_attention")", slides = R"("sliding_attention")";
  const auto list = [&](const std::string& kinds) {
    std::string text;
    for (const char kind : kinds) text += (text.empty() ? "" : ",") + (kind == 'f' ? full : slides);
    return R"(,"layer_types":[)" + text + "]";
  };
  EXPECT_EQ(parse_modern(list("fssfssf")), parse_modern(""));
  const ModernBertConfig halves = parse_modern(R"(,"global_attn_every_n_layers":2)");
  EXPECT_EQ(parse_modern(list("fsfsfsf")), halves);
  EXPECT_EQ(parse_modern(list("fffffff")), parse_modern(R"(,"global_attn_every_n_layers":1)"));
  const ModernBertConfig irregular = parse_modern(list("sfssfff"));
  EXPECT_FALSE(irregular.slides_in(1));
  EXPECT_TRUE(irregular.slides_in(0) && irregular.slides_in(3));
  for (const ModernBertConfig& c : {halves, irregular})
    EXPECT_EQ(parse_modernbert_config(c.json(), "again"), c) << c.json();
}

TEST(ModernBertConfig, EveryFieldSurvivesTheRoundTrip) {
  for (const char* task :
       {"ForMaskedLM\"]", "Model\"]", R"(ForSequenceClassification"],"id2label":{"0":"x","1":"y"})",
        R"(ForSequenceClassification"],"id2label":{"0":"x"},"problem_type":"regression")",
        R"(ForTokenClassification"],"id2label":{"0":"O","1":"B-X"})"}) {
    const ModernBertConfig c = parse_modern(
        R"(,"architectures":["ModernBert)" + std::string(task) +
        R"(,"max_position_embeddings":40,"kept":[1],"hidden_activation":"relu","norm_bias":true,)"
        R"("classifier_activation":"silu","norm_eps":1e-6,"attention_bias":true,"mlp_bias":true,)"
        R"("decoder_bias":false,"classifier_bias":true,"classifier_pooling":"mean",)"
        R"("tie_word_embeddings":false,"local_attention":6,"attention_dropout":0.1,)"
        R"("embedding_dropout":0.2,"mlp_dropout":0.3,"classifier_dropout":0.4,)"
        R"("initializer_range":0.5)");
    EXPECT_EQ(parse_modernbert_config(c.json(), "again"), c) << c.json();
    EXPECT_NE(c.json().find("\"kept\""), std::string::npos);
    EXPECT_EQ(c.mlp_dropout, 0.3);
    EXPECT_EQ(c.classifier_pooling, ClassifierPooling::mean);
  }
}

TEST(ModernBertConfig, WhatIsWrongIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(,"hidden_activation":"mish")", "hidden_activation = 'mish' is not supported"},
      {R"(,"classifier_pooling":"max")", "classifier_pooling = 'max' is not supported"},
      {R"(,"pad_token_id":61)", "'pad_token_id' appears twice"},
      {R"(,"local_attention":0)", "local_attention must be between 1"},
      {R"(,"local_attention":-1)", "local_attention must be between 1"},
      {R"(,"global_attn_every_n_layers":0)", "global_attn_every_n_layers must be between 1"},
      {R"(,"layer_types":["full_attention"])",
       "layer_types must be a list of num_hidden_layers = 7 entries; got 1"},
      {R"(,"layer_types":["chunked_attention"])", "found 'chunked_attention'"},
      {R"(,"rope_scaling":{"rope_type":"linear","factor":2})", "rope_scaling"},
      {R"(,"rope_parameters":{"full_attention":{"rope_type":"linear","factor":2.0}})",
       "rope_type must be default; got linear"},
      {R"(,"local_rope_theta":1)", "local_rope_theta must be above 1"},
      {R"(,"quantization_config":{})", "quantization_config is not supported"},
  };
  for (const auto& [more, part] : cases) {
    const std::string message = test::user_error_of([&, more = more] { parse_modern(more); });
    EXPECT_NE(message.find(part), std::string::npos) << more << "\n" << message;
    EXPECT_NE(message.find("config.json"), std::string::npos) << message;
  }
  EXPECT_USER_ERROR(
      parse_modernbert_config(R"({"model_type":"modernbert","vocab_size":61,"hidden_size":33,)"
                              R"("intermediate_size":48,"num_hidden_layers":1,)"
                              R"("num_attention_heads":11,"pad_token_id":0})",
                              "config.json"),
      "even, for rotary embeddings");
  EXPECT_USER_ERROR(parse_modern("").model()->with_task({.head = Head::next_token}),
                    "an encoder has no head that predicts the next token");
}

}  // namespace
}  // namespace brrr::models
