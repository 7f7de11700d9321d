// What folders of sentence-transformers say, and what is refused.

#include "folders/sentence_folder.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using models::Pooling;

class SentenceFolder : public testing::Test {
 protected:
  test::TempFolder folder_;
  void put(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_.path() / name).parent_path());
    write_file_atomically(folder_.path() / name, text);
  }
  void put_modules(const std::string& last = "") const {
    put("modules.json",
        R"([{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Transformer"},)"
        R"({"idx":1,"name":"1","path":"1_Pooling","type":"sentence_transformers.models.Pooling"})" +
            last + "]");
  }
  SentenceSettings read() const { return read_sentence_settings(folder_.path()); }
};

TEST_F(SentenceFolder, SaysNothing) {
  const SentenceSettings s = read();
  EXPECT_FALSE(s.is_said);
  EXPECT_FALSE(s.longest);
  EXPECT_EQ(s.task, (models::Task{.head = models::Head::embedding}));
  EXPECT_EQ(s.model, folder_.path());
}

TEST_F(SentenceFolder, PromptsAndOlderLayouts) {
  put("config_sentence_transformers.json",
      R"({"prompts":{"query":"query: ","none":""},"default_prompt_name":"query"})");
  put("modules.json",
      R"([{"path":"0_Transformer","type":"sentence_transformers.models.Transformer"}])");
  put("sentence_bert_config.json", R"({"max_seq_length": 128, "do_lower_case": true})");
  const SentenceSettings s = read();
  EXPECT_EQ(s.prompt, "query: ");
  EXPECT_EQ(s.prompts, (std::map<std::string, std::string>{{"none", ""}, {"query", "query: "}}));
  EXPECT_EQ(s.model, folder_.path() / "0_Transformer");
  EXPECT_TRUE(s.lowercase);
  EXPECT_FALSE(s.is_said) << "no module pools";
  put("config_sentence_transformers.json", R"({"similarity_fn_name":"dot_product"})");
  EXPECT_EQ(read().similarity, Similarity::dot);
  put("config_sentence_transformers.json", R"({"similarity_fn_name":"hamming"})");
  EXPECT_NE(test::user_error_of([&] { read(); }).find("found the string 'hamming'"),
            std::string::npos);
  put("config_sentence_transformers.json", R"({"default_prompt_name":"passage"})");
  EXPECT_NE(test::user_error_of([&] { read(); }).find("names no text in \"prompts\""),
            std::string::npos);
}

TEST_F(SentenceFolder, PoolingsStandInTheOrderOfTheLibrary) {
  put_modules(R"(,{"path":"2_Normalize","type":"sentence_transformers.models.Normalize"})");
  put("sentence_bert_config.json", R"({"max_seq_length": 256, "do_lower_case": false})");
  put("1_Pooling/config.json",
      R"({"word_embedding_dimension":8,"pooling_mode_mean_tokens":true,"pooling_mode_cls_token":true,"pooling_mode_max_tokens":false})");
  const SentenceSettings s = read();
  EXPECT_TRUE(s.is_said);
  EXPECT_EQ(s.longest, 256);
  EXPECT_EQ(s.task.pooling, (std::vector<Pooling>{Pooling::cls, Pooling::mean}));
  EXPECT_TRUE(s.task.normalize);
}

TEST_F(SentenceFolder, ModulesBehindThePooling) {
  put("1_Pooling/config.json", R"({"pooling_mode":"mean","include_prompt":false})");
  put("2_Dense/config.json",
      R"({"in_features":8,"out_features":4,"bias":false,"use_residual":true,
          "activation_function":"torch.nn.modules.linear.Identity"})");
  put("3_Dense/config.json", R"({"in_features":4,"out_features":2})");
  put("4_LayerNorm/config.json", R"({"dimension":2})");
  put_modules(R"(,{"path":"2_Dense","type":"sentence_transformers.models.Dense"},
                  {"path":"3_Dense","type":"sentence_transformers.models.Dense"},
                  {"path":"4_LayerNorm","type":"sentence_transformers.models.LayerNorm"},
                  {"path":"5_Dropout","type":"sentence_transformers.models.Dropout"},
                  {"path":"6_Normalize","type":"sentence_transformers.models.Normalize"})");
  SentenceSettings s = read();
  EXPECT_FALSE(s.pools_prompt);
  EXPECT_FALSE(s.task.normalize);
  EXPECT_TRUE(s.ends_normalized());
  using Kind = SentenceLayer::Kind;
  const fs::path folder = folder_.path();
  const std::vector<SentenceLayer> expected{
      {.kind = Kind::dense,
       .folder = folder / "2_Dense",
       .inputs = 8,
       .outputs = 4,
       .has_bias = false,
       .adds_input = true,
       .activation = "torch.nn.modules.linear.Identity"},
      {.kind = Kind::dense,
       .folder = folder / "3_Dense",
       .inputs = 4,
       .outputs = 2,
       .activation = "torch.nn.modules.activation.Tanh"},
      {.kind = Kind::layer_norm, .folder = folder / "4_LayerNorm", .inputs = 2, .outputs = 2},
      {.kind = Kind::normalize}};
  EXPECT_EQ(s.layers, expected);
  s.keep_lengths();
  EXPECT_EQ(s.layers.size(), 3u);
  EXPECT_FALSE(s.ends_normalized());
  // A further Pooling begins again with the vectors of tokens.
  put_modules(R"(,{"path":"6_Normalize","type":"sentence_transformers.models.Normalize"},
                  {"path":"3_Dense","type":"sentence_transformers.models.Dense"},
                  {"path":"1_Pooling","type":"sentence_transformers.models.Pooling"})");
  s = read();
  EXPECT_TRUE(s.layers.empty());
  EXPECT_FALSE(s.ends_normalized());
}

TEST_F(SentenceFolder, TablesOfTokenVectors) {
  put("modules.json",
      R"([{"path":".","type":"sentence_transformers.models.StaticEmbedding"},
          {"path":"1_Normalize","type":"sentence_transformers.models.Normalize"}])");
  const SentenceSettings fixed = read();
  ASSERT_TRUE(fixed.table);
  EXPECT_EQ(*fixed.table, (SentenceTable{SentenceTable::Kind::static_embedding, folder_.path()}));
  EXPECT_TRUE(fixed.task.normalize && fixed.layers.empty() && fixed.is_said);
  put("0_Words/wordembedding_config.json",
      R"({"tokenizer_class":"a.b.TransformersTokenizerWrapper","max_seq_length":7})");
  put("1_Pooling/config.json", R"({"pooling_mode":["max","mean"]})");
  put("modules.json", R"([{"path":"0_Words","type":"models.WordEmbeddings"},
                          {"path":"1_Pooling","type":"models.Pooling"}])");
  const SentenceSettings words = read();
  ASSERT_TRUE(words.table);
  EXPECT_EQ(*words.table,
            (SentenceTable{SentenceTable::Kind::word_embeddings, folder_.path() / "0_Words"}));
  EXPECT_EQ(words.longest, 7);
  EXPECT_EQ(words.task.pooling, (std::vector<Pooling>{Pooling::max, Pooling::mean}));
}

TEST_F(SentenceFolder, NewerFilesNameTheMode) {
  put_modules();
  for (const auto& [mode, pooling] : {std::pair{"mean", Pooling::mean},
                                      {"cls", Pooling::cls},
                                      {"lasttoken", Pooling::last_token}}) {
    put("1_Pooling/config.json", std::string(R"({"pooling_mode":")") + mode + "\"}");
    EXPECT_EQ(read().task.pooling, std::vector<Pooling>{pooling}) << mode;
  }
}

TEST_F(SentenceFolder, WhatIsNotSupportedIsNamed) {
  const auto expect = [&](const char* part) {
    const std::string message = test::user_error_of([&] { read(); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  put_modules();
  put("1_Pooling/config.json", R"({"pooling_mode_attention":true})");
  expect("pooling_mode_attention is not supported (supported: cls_token, max_tokens");
  put("1_Pooling/config.json", R"({"pooling_mode":"attention"})");
  expect("pooling_mode the string 'attention' is not supported");
  put("1_Pooling/config.json", R"({"pooling_mode":[]})");
  expect("no pooling is on");
  put("1_Pooling/config.json", R"({"pooling_mode_mean_tokens":false})");
  expect("no pooling is on");
  put("1_Pooling/config.json", R"({"pooling_mode_mean_tokens":3})");
  expect("pooling_mode_mean_tokens must be true or false");
  put("1_Pooling/config.json", "[]");
  expect("expected an object");
  fs::remove_all(folder_.path() / "1_Pooling");
  expect("1_Pooling");
  put_modules(R"(,{"path":"2_LSTM","type":"sentence_transformers.models.LSTM"})");
  put("1_Pooling/config.json", R"({"pooling_mode_mean_tokens":true})");
  expect("the module 'sentence_transformers.models.LSTM' is not supported (supported: Transformer");
  put_modules(R"(,{"path":"2_Dense","type":"sentence_transformers.models.Dense"})");
  expect("2_Dense");
  const std::string sizes = R"("in_features":8,"out_features":4)";
  for (const auto& [more, message] :
       {std::pair{R"("in_features":8)", "out_features must be a number from 1 to"},
        {R"("in_features":0,"out_features":4)", "in_features must be a number from 1 to"},
        {R"("bias":1)", "bias must be true or false"},
        {R"("use_residual":null)", "use_residual must be true or false"},
        {R"("activation_function":"torch.nn.modules.activation.Softmax")",
         "is not supported (supported, of torch.nn: Identity, Tanh, GELU"},
        {R"("activation_function":"my.Tanh")", "activation_function the string 'my.Tanh' is not"},
        {R"("module_input_name":"token_embeddings")",
         "module_input_name = the string 'token_embeddings' is not supported"}}) {
    const std::string own(more);
    put("2_Dense/config.json",
        "{" + (own.find("_features") == std::string::npos ? sizes + "," : "") + own + "}");
    expect(message);
  }
  put("2_LayerNorm/config.json", R"({"dimension":"8"})");
  put_modules(R"(,{"path":"2_LayerNorm","type":"sentence_transformers.models.LayerNorm"})");
  expect("dimension must be a number from 1 to");
  put("2_Normalize/config.json", R"({"module_output_name":"other"})");
  put_modules(R"(,{"path":"2_Normalize","type":"sentence_transformers.models.Normalize"})");
  expect("module_output_name = the string 'other' is not supported");
  put("modules.json", R"([{"path":"2_Dense","type":"models.Dense"}])");
  expect("the module Dense stands before Pooling");
  put("modules.json",
      R"([{"path":".","type":"models.StaticEmbedding"},{"path":"1_Pooling","type":"models.Pooling"}])");
  expect("StaticEmbedding gives whole vectors, which are not pooled again");
  put("0_WordEmbeddings/wordembedding_config.json",
      R"({"tokenizer_class":"a.WhitespaceTokenizer"})");
  put("modules.json", R"([{"path":"0_WordEmbeddings","type":"models.WordEmbeddings"}])");
  expect("tokenizer_class the string 'a.WhitespaceTokenizer' is not supported");
  put("modules.json", R"([{"path":"a/b","type":"models.WordEmbeddings"}])");
  expect("the module WordEmbeddings must be in a folder of this folder");
  put("modules.json", R"([{"path":"../elsewhere","type":"models.Pooling"}])");
  expect("must be in a folder of this folder");
  put("modules.json", R"({"a":1})");
  expect("expected a list of modules");
  put("sentence_bert_config.json", R"({"max_seq_length": 0})");
  expect("max_seq_length must be a number of tokens");
}

}  // namespace
}  // namespace brrr::io
