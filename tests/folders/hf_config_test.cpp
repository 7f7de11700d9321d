#include "folders/hf_config.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "formats/json_file.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using models::Gpt2Config;
using test::TempFolder;

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
  EXPECT_EQ(c.parameter_count(), 124'439'808);
  c.n_embd = 1600, c.n_layer = 48, c.n_head = 25;
  EXPECT_EQ(c.parameter_count(), 1'557'611'200);
  EXPECT_NO_THROW(c.validate());
}

TEST(Gpt2Config, CountIsTheSumOfTheTensors) {
  for (const bool tie : {true, false})
    for (const bool bias : {true, false}) {
      Gpt2Config c = small();
      c.tie_word_embeddings = tie, c.bias = bias;
      int64_t sum = 0;
      for (const ExpectedTensor& t : expected_tensors(c)) sum += t.shape.elements();
      EXPECT_EQ(sum, c.parameter_count());
    }
}

TEST(Gpt2Config, EveryFieldSurvivesTheRoundTrip) {
  Gpt2Config c = small();
  c.resid_pdrop = 0.2, c.embd_pdrop = 0.3, c.attn_pdrop = 0, c.layer_norm_epsilon = 1e-6;
  c.initializer_range = 0.01, c.activation = "gelu", c.tie_word_embeddings = false, c.bias = false;
  c.bos_token_id = 3, c.eos_token_id = 64;
  EXPECT_EQ(parse(gpt2_config_json(c)), c);
  EXPECT_EQ(parse(gpt2_config_json(Gpt2Config{})), Gpt2Config{});
}

TEST(Gpt2Config, TokensOutsideTheVocabularyAreWrittenAsNone) {
  const Gpt2Config c = small();
  EXPECT_TRUE(parse_json(gpt2_config_json(c), "t")["eos_token_id"].is_null());
  EXPECT_EQ(parse(gpt2_config_json(c)).eos_token_id, -1);
  EXPECT_FALSE(c.end_of_text().has_value());
  EXPECT_EQ(Gpt2Config{}.end_of_text(), 50256);
}

TEST(Gpt2Config, DefaultsAndUnknownKeys) {
  const Gpt2Config c =
      parse(std::string(kSmall) + R"(,"summary_type":"cls_index","task_specific_params":{"a":1}})");
  EXPECT_EQ(c, small());
  EXPECT_EQ(
      parse(R"({"architectures":["GPT2LMHeadModel"],)" + std::string(kSmall + 21) + "}").n_layer,
      2);
  EXPECT_EQ(
      parse(std::string(kSmall) + R"(,"n_inner":32,"activation_function":"gelu_pytorch_tanh"})")
          .activation,
      "gelu_new");
}

TEST(Gpt2Config, WhatIsWrongIsNamed) {
  const std::string ok = kSmall;
  const std::pair<std::string, const char*> cases[] = {
      {"", "not valid JSON at line 1, column 1: the file is empty"},
      {"{\"model_type\": \"gpt2\",", "the text ends too early"},
      {"[1]", "expected a JSON object with the configuration of a GPT-2, found an array"},
      {R"({"model_type":"llama","hidden_size":8})",
       "(\"model_type\": \"gpt2\"), found the string 'llama'"},
      {R"({"architectures":["BertModel"]})",
       "expected the configuration of a GPT-2, found the architecture 'BertModel'"},
      {"{}", "neither \"model_type\": \"gpt2\" nor \"n_embd\""},
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
      {ok + R"(,"activation_function":"relu"})",
       "activation_function must be gelu_new, gelu_pytorch_tanh or gelu; found 'relu'"},
      {ok + R"(,"tie_word_embeddings":1})",
       "'tie_word_embeddings' must be true or false; found the number 1"},
      {ok + R"(,"n_inner":100})", "n_inner = 100 is not supported; expected 4 * n_embd = 32"},
      {ok + R"(,"scale_attn_by_inverse_layer_idx":true})",
       "scale_attn_by_inverse_layer_idx = true is not supported"},
      {ok + R"(,"n_head":4})", "'n_head' appears twice"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_USER_ERROR(parse(text), message);
    EXPECT_USER_ERROR(parse(text), "run/config.json");
  }
  EXPECT_USER_ERROR(read_gpt2_config("no/config.json"), "cannot read no/config.json");
}

TEST(Gpt2Config, LargestAllowedSizesDoNotOverflow) {
  Gpt2Config c;
  c.vocab_size = c.n_positions = int64_t{1} << 24;
  c.n_embd = int64_t{1} << 18, c.n_layer = 4096, c.n_head = 1;
  c.tie_word_embeddings = false;
  c.validate();
  EXPECT_GT(c.parameter_count(), int64_t{3} << 50);
}

/// A GPT-2 in memory whose tensors can be renamed, reshaped and removed before it is written.
struct Weights {
  explicit Weights(const Gpt2Config& config) {
    for (const ExpectedTensor& e : expected_tensors(config)) {
      std::vector<float>& v = values[e.name];
      v.resize(static_cast<size_t>(e.shape.elements()));
      std::iota(v.begin(), v.end(), static_cast<float>(values.size()));
      views[e.name] = {e.name, f32, e.shape, std::as_bytes(std::span(v))};
    }
  }
  SafetensorsFile written(const fs::path& path) const {
    std::vector<TensorView> list;
    for (const auto& [name, view] : views) list.push_back(view);
    write_safetensors(path, list);
    return SafetensorsFile(path);
  }
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, TensorView> views;
};

TEST(Gpt2Tensors, NamesShapesAndOrderOfHuggingFace) {
  Gpt2Config c = small();
  c.n_layer = 1;
  c.tie_word_embeddings = false;
  const std::vector<std::pair<std::string, Shape>> wanted = {
      {"transformer.wte.weight", {65, 8}},
      {"transformer.wpe.weight", {16, 8}},
      {"transformer.h.0.ln_1.weight", {8}},
      {"transformer.h.0.ln_1.bias", {8}},
      {"transformer.h.0.attn.c_attn.weight", {8, 24}},
      {"transformer.h.0.attn.c_attn.bias", {24}},
      {"transformer.h.0.attn.c_proj.weight", {8, 8}},
      {"transformer.h.0.attn.c_proj.bias", {8}},
      {"transformer.h.0.ln_2.weight", {8}},
      {"transformer.h.0.ln_2.bias", {8}},
      {"transformer.h.0.mlp.c_fc.weight", {8, 32}},
      {"transformer.h.0.mlp.c_fc.bias", {32}},
      {"transformer.h.0.mlp.c_proj.weight", {32, 8}},
      {"transformer.h.0.mlp.c_proj.bias", {8}},
      {"transformer.ln_f.weight", {8}},
      {"transformer.ln_f.bias", {8}},
      {"lm_head.weight", {65, 8}}};
  const auto found = expected_tensors(c);
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(found[i].name, wanted[i].first);
    EXPECT_EQ(found[i].shape, wanted[i].second);
  }
  EXPECT_EQ(expected_tensors(Gpt2Config{}).size(), 148u);
}

TEST(Gpt2Tensors, MatchesWithAndWithoutPrefixAndIgnoresMasks) {
  TempFolder folder;
  const Gpt2Config c = small();
  Weights w(c);
  EXPECT_EQ(match_tensors(w.written(folder / "a"), c).size(), w.views.size());

  for (auto& [name, view] : w.views) view.name = name.substr(std::strlen("transformer."));
  w.views["mask"] = {"h.0.attn.bias", f32, Shape({1, 1, 2, 2}),
                     w.views.begin()->second.bytes.first(16)};
  w.views["masked"] = {"h.1.attn.masked_bias", f32, Shape(),
                       w.views.begin()->second.bytes.first(4)};
  w.views["score"] = {"score.weight", f32, Shape({1}), w.views.begin()->second.bytes.first(4)};
  TensorView head = w.views.at("transformer.wte.weight");
  head.name = "lm_head.weight";
  w.views["head"] = head;
  const SafetensorsFile file = w.written(folder / "b");
  const auto matched = match_tensors(file, c);
  EXPECT_EQ(matched.size(), expected_tensors(c).size());
  const TensorView& t = matched.at("transformer.h.1.mlp.c_fc.weight");
  EXPECT_EQ(t.name, "transformer.h.1.mlp.c_fc.weight");
  std::vector<float> read(t.shape.elements());
  copy_as_f32(t, read);
  EXPECT_EQ(read, w.values.at("transformer.h.1.mlp.c_fc.weight"));
}

TEST(Gpt2Tensors, WhatDoesNotMatchIsNamed) {
  TempFolder folder;
  const Gpt2Config c = small();
  const auto error_after = [&](auto&& change, const Gpt2Config& config) {
    Weights w(c);
    change(w.views);
    const SafetensorsFile file = w.written(folder / "model.safetensors");
    return test::user_error_of([&] { match_tensors(file, config); });
  };
  using Views = std::map<std::string, TensorView>;
  const auto expect = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const auto nothing = [](Views&) {};
  expect(error_after([](Views& v) { v.erase("transformer.h.1.ln_2.bias"); }, c),
         "model.safetensors: the tensor transformer.h.1.ln_2.bias [8] is missing");
  expect(error_after(
             [](Views& v) {
               v.at("transformer.h.0.attn.c_attn.weight").shape = Shape({24, 8});
             },
             c),
         "transformer.h.0.attn.c_attn.weight must have the shape [8,24] by config.json; the file "
         "has [24,8]");
  expect(error_after([](Views& v) { v.at("transformer.ln_f.bias").dtype = i32; }, c),
         "transformer.ln_f.bias must hold floating-point weights; the file has i32");
  Gpt2Config other = c;
  other.n_layer = 1;
  expect(error_after(nothing, other),
         "config.json (1 layers) does not know the tensor 'transformer.h.1.");
  other.n_layer = 3;
  expect(error_after(nothing, other), "transformer.h.2.ln_1.weight [8] is missing");
  other = c;
  other.bias = false;
  expect(error_after(nothing, other), "(2 layers, no bias) does not know the tensor");
  other = c;
  other.tie_word_embeddings = false;
  expect(error_after(nothing, other), "lm_head.weight [65,8] is missing");
  const std::vector<float> zeros(65 * 8);
  expect(error_after(
             [&](Views& v) {
               v["lm_head.weight"] = {"lm_head.weight", f32, Shape({65, 8}),
                                      std::as_bytes(std::span(zeros))};
             },
             c),
         "lm_head.weight differs from transformer.wte.weight, but config.json ties them");
  expect(error_after(
             [&](Views& v) {
               v["x"] = {"ln_f.bias", f32, Shape({8}), std::as_bytes(std::span(zeros)).first(32)};
             },
             c),
         "does not know the tensor 'ln_f.bias' [8]");
}

TEST(Gpt2Tensors, AFolderRoundTrip) {
  TempFolder folder;
  const Gpt2Config c = small();
  const Weights w(c);
  std::vector<TensorView> list;
  for (const auto& [name, view] : w.views) list.push_back(view);
  write_hf_gpt2(folder.path(), c, list);
  const SafetensorsFile file(folder / "model.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(match_tensors(file, read_gpt2_config(folder / "config.json")).size(), list.size());
  list.pop_back();
  EXPECT_THROW(write_hf_gpt2(folder.path(), c, list), InternalError);
}

}  // namespace
}  // namespace brrr::io
