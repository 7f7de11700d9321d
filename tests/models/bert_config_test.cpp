// The configuration of the BERT family: config.json, tasks, and what is refused.

#include <gtest/gtest.h>

#include "base/errors.h"
#include "formats/json_file.h"
#include "models/bert/bert_config.h"
#include "support/temp_folder.h"

namespace brrr::models {
namespace {

constexpr const char* kBertBase =
    R"("vocab_size":65,"hidden_size":16,"intermediate_size":24,"num_hidden_layers":3,"num_attention_heads":4)";
constexpr const char* kDistilBase =
    R"("vocab_size":65,"dim":16,"hidden_dim":24,"n_layers":3,"n_heads":4)";

std::string bert_text(const std::string& more, const std::string& type = "bert") {
  return R"({"model_type":")" + type + "\"," + (type == "distilbert" ? kDistilBase : kBertBase) +
         more + "}";
}
BertConfig parse_bert(const std::string& more, const std::string& type = "bert") {
  return parse_bert_config(bert_text(more, type), "run/config.json");
}
TEST(BertConfig, KnownParameterCounts) {
  BertConfig c;
  c.task = {.head = Head::masked_token};
  EXPECT_EQ(c.model()->parameter_count(), 109'514'298);  // BertForMaskedLM, BERT base
  c.task = {.head = Head::classes, .labels = {"a", "b"}};
  EXPECT_EQ(c.model()->parameter_count(), 109'483'778);  // BertForSequenceClassification
  c.type = BertType::roberta;
  c.vocab_size = 50265, c.max_position_embeddings = 514, c.type_vocab_size = 1, c.pad_token_id = 1;
  EXPECT_EQ(c.model()->parameter_count(), 124'647'170);  // RoBERTa base
  EXPECT_EQ(c.model()->sizes().context, 512);
}

TEST(BertConfig, TasksAreToldByTheClass) {
  const auto task = [](const std::string& more, const std::string& type = "bert") {
    return parse_bert(more, type).task;
  };
  EXPECT_EQ(task("").head, Head::embedding);
  EXPECT_EQ(task(R"(,"architectures":["BertModel"])").head, Head::embedding);
  EXPECT_EQ(task(R"(,"architectures":["BertForQuestionAnswering"])").head, Head::embedding);
  EXPECT_EQ(task(R"(,"architectures":["BertForPreTraining"])").head, Head::masked_token);
  const char* classes = R"(,"architectures":["BertForSequenceClassification"])";
  EXPECT_EQ(task(classes).labels, (std::vector<std::string>{"LABEL_0", "LABEL_1"}));
  EXPECT_EQ(task(classes + std::string(R"(,"id2label":{"1":"b","0":"a","2":"c"})")).labels,
            (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(task(classes + std::string(R"(,"num_labels":1)")).head, Head::values);
  EXPECT_EQ(task(classes + std::string(R"(,"num_labels":3,"problem_type":"regression")")).head,
            Head::values);
  EXPECT_TRUE(
      task(classes + std::string(R"(,"problem_type":"multi_label_classification")")).several);
  EXPECT_EQ(task(R"(,"architectures":["DistilBertForTokenClassification"])", "distilbert").head,
            Head::token_classes);
}

TEST(BertConfig, EveryFieldSurvivesTheRoundTrip) {
  const std::vector<std::string> tasks = {
      "ForMaskedLM\"]",
      "Model\"]",
      R"(ForSequenceClassification"],"id2label":{"0":"x","1":"y \" z"})",
      R"(ForSequenceClassification"],"id2label":{"0":"x"},"problem_type":"regression")",
      R"(ForSequenceClassification"],"problem_type":"multi_label_classification")",
      R"(ForTokenClassification"],"id2label":{"0":"O","1":"B-X"})"};
  for (const char* type : {"bert", "roberta", "xlm-roberta", "distilbert", "mpnet"}) {
    const std::string classes = type == std::string("bert")          ? "Bert"
                                : type == std::string("roberta")     ? "Roberta"
                                : type == std::string("xlm-roberta") ? "XLMRoberta"
                                : type == std::string("mpnet")       ? "MPNet"
                                                                     : "DistilBert";
    for (const std::string& task : tasks) {
      const BertConfig c = parse_bert(
          R"(,"architectures":[")" + classes + task + R"(,"pad_token_id":)" +
              (type == std::string("mpnet") ? "1" : "2") +
              R"(,"max_position_embeddings":40,"initializer_range":0.5,"kept":[1,{"a":2}],"hidden_act":"relu","activation":"relu","hidden_dropout_prob":0.25,"dropout":0.25,"attention_dropout":0.125,"attention_probs_dropout_prob":0.125,"classifier_dropout":0.5,"seq_classif_dropout":0.5,"layer_norm_eps":1e-6,"tie_word_embeddings":false,"type_vocab_size":3)",
          type);
      const BertConfig again = parse_bert_config(c.json(), "again");
      EXPECT_EQ(again, c) << type << task << c.json();
      EXPECT_NE(c.json().find("\"kept\""), std::string::npos);
      EXPECT_EQ(c.hidden_dropout_prob, 0.25);
      EXPECT_EQ(c.attention_probs_dropout_prob, 0.125);
      const bool has_own = type != std::string("mpnet");
      EXPECT_EQ(c.classifier_dropout, has_own ? 0.5 : 0.25) << type;
    }
  }
}

TEST(BertConfig, WhatIsWrongIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(,"is_decoder":true)", "is_decoder"},
      {R"(,"position_embedding_type":"relative_key")",
       "position_embedding_type = 'relative_key' is not supported"},
      {R"(,"hidden_act":"mish")", "hidden_act = 'mish' is not supported"},
      {R"(,"hidden_size":15)", "'hidden_size' appears twice"},
      {R"(,"pad_token_id":65)", "pad_token_id must be a token below vocab_size 65; got 65"},
      {R"(,"max_position_embeddings":0)", "max_position_embeddings must be between"},
      {R"(,"type_vocab_size":-1)", "type_vocab_size must be between 0"},
      {R"(,"quantization_config":{})", "quantization_config is not supported"},
      {R"(,"architectures":["BertForSequenceClassification"],"id2label":{"0":"a","2":"b"})",
       "id2label must number its 2 labels from 0 to 1; it has '2'"},
      {R"(,"architectures":["BertForSequenceClassification"],"id2label":{"0":[1]})",
       "id2label: the label 0 must be a text"},
      {R"(,"architectures":["BertForSequenceClassification"],"id2label":{})",
       "id2label must be an object"},
      {R"(,"architectures":["BertForSequenceClassification"],"id2label":{"0":"a","1":"a"})",
       "id2label has the label 'a' twice"},
      {R"(,"architectures":["BertForSequenceClassification"],"num_labels":0)",
       "num_labels must be between 1"},
      {R"(,"architectures":["BertForSequenceClassification"],"problem_type":"ranking")",
       "problem_type must be regression"},
  };
  for (const auto& [more, part] : cases) {
    const std::string message = test::user_error_of([&, text = more] { parse_bert(text); });
    EXPECT_NE(message.find(part), std::string::npos) << more << ": " << message;
    EXPECT_TRUE(message.starts_with("run/config.json")) << message;
  }
  EXPECT_NE(test::user_error_of([] {
              parse_bert(R"(,"max_position_embeddings":2)", "roberta");
            }).find("max_position_embeddings must be more than the 2 rows that no token has"),
            std::string::npos);
  EXPECT_NE(test::user_error_of([] {
              parse_bert(R"(,"relative_attention_num_buckets":16)", "mpnet");
            }).find("relative_attention_num_buckets must be 32; got 16"),
            std::string::npos);
}

TEST(BertConfig, MpnetPadsWithTokenOne) {
  EXPECT_NE(test::user_error_of([] {
              parse_bert(R"(,"pad_token_id":0)", "mpnet");
            }).find("pad_token_id must be 1 for mpnet; got 0"),
            std::string::npos);
  const Architecture& architecture = find_architecture("bert");
  Description described{{{"model-type", "mpnet"}}, 65, 32, 0, std::nullopt};
  EXPECT_EQ(architecture.describe(described)->sizes().context, 32);
  described.pad_token = 0;
  EXPECT_NE(test::user_error_of([&] {
              architecture.describe(described);
            }).find("needs a tokenizer that pads with token 1"),
            std::string::npos);
}

TEST(BertConfig, AnEncoderDoesNotGenerate) {
  const ModelPtr model = parse_bert("").model();
  EXPECT_NE(test::user_error_of([&] { model->decode({}); }).find("an encoder does not generate"),
            std::string::npos);
  EXPECT_NE(
      test::user_error_of([&] { model->forward(Dim(1), Dim(513)); }).find("at most 512 positions"),
      std::string::npos);
  EXPECT_NE(test::user_error_of([&] { model->with_task({}); }).find("no head"), std::string::npos);
  EXPECT_NE(
      test::user_error_of([] {
        parse_config(
            R"({"model_type":"llama","vocab_size":65,"hidden_size":16,"intermediate_size":24,"num_hidden_layers":3,"num_attention_heads":4})",
            "c")
            ->with_task({.head = Head::embedding});
      }).find("it needs an encoder"),
      std::string::npos);
}

}  // namespace
}  // namespace brrr::models
