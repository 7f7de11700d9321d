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
  EXPECT_EQ(s.model, folder_.path() / "0_Transformer");
  EXPECT_TRUE(s.lowercase);
  EXPECT_FALSE(s.is_said) << "no module pools";
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
  put("1_Pooling/config.json", R"({"pooling_mode":"mean","include_prompt":false})");
  expect("include_prompt = false is not supported");
  put("1_Pooling/config.json", R"({"pooling_mode_mean_tokens":false})");
  expect("no pooling is on");
  put("1_Pooling/config.json", R"({"pooling_mode_mean_tokens":3})");
  expect("pooling_mode_mean_tokens must be true or false");
  put("1_Pooling/config.json", "[]");
  expect("expected an object");
  put("1_Pooling/config.json", R"({"pooling_mode_mean_tokens":true,"include_prompt":false})");
  expect("include_prompt = false is not supported");
  fs::remove_all(folder_.path() / "1_Pooling");
  expect("1_Pooling");
  put_modules(R"(,{"path":"2_Dense","type":"sentence_transformers.models.Dense"})");
  put("1_Pooling/config.json", R"({"pooling_mode_mean_tokens":true})");
  expect("the module 'sentence_transformers.models.Dense' is not supported");
  put("modules.json", R"([{"path":"../elsewhere","type":"models.Pooling"}])");
  expect("must be in a folder of this folder");
  put("modules.json", R"({"a":1})");
  expect("expected a list of modules");
  put("sentence_bert_config.json", R"({"max_seq_length": 0})");
  expect("max_seq_length must be a number of tokens");
}

}  // namespace
}  // namespace brrr::io
