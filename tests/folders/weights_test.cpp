// The weights of a model folder: one file or shards, and which tensors a model finds in them.

#include "folders/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "folders/model_folder.h"
#include "formats/json_file.h"
#include "models/gpt2/gpt2_config.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using models::Gpt2Config;
using test::TempFolder;

Gpt2Config small() {
  Gpt2Config c;
  c.vocab_size = 65;
  c.n_positions = 16;
  c.n_embd = 8;
  c.n_layer = 2;
  c.n_head = 2;
  return c;
}

/// A model in memory whose tensors can be renamed, reshaped and removed before it is written.
struct Weights {
  explicit Weights(const Gpt2Config& config) : Weights(*config.model()) {}
  explicit Weights(const models::Model& model) {
    for (const models::ParameterInfo& e : model.parameters()) {
      std::vector<float>& v = values[e.name];
      v.resize(static_cast<size_t>(e.shape.elements()));
      std::iota(v.begin(), v.end(), static_cast<float>(values.size()));
      views[e.name] = {e.name, f32, e.shape, std::as_bytes(std::span(v))};
    }
  }
  std::shared_ptr<const WeightFiles> written(const fs::path& folder) const {
    std::vector<TensorView> list;
    for (const auto& [name, view] : views) list.push_back(view);
    create_folder(folder);
    write_safetensors(folder / "model.safetensors", list);
    return std::make_shared<WeightFiles>(folder);
  }
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, TensorView> views;
};

size_t count(const WeightSource& source) {
  size_t tensors = 0;
  source.each([&](const TensorView&) { ++tensors; });
  return tensors;
}

TEST(Weights, NamesShapesAndOrderOfHuggingFace) {
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
  const auto found = c.model()->parameters();
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(found[i].name, wanted[i].first);
    EXPECT_EQ(found[i].shape, wanted[i].second);
  }
  EXPECT_EQ(Gpt2Config{}.model()->parameters().size(), 148u);
}

TEST(Weights, MatchesWithAndWithoutPrefixAndIgnoresMasks) {
  TempFolder folder;
  const Gpt2Config c = small();
  Weights w(c);
  EXPECT_EQ(count(*match_tensors(w.written(folder / "a"), *c.model())), w.views.size());

  for (auto& [name, view] : w.views) view.name = name.substr(std::strlen("transformer."));
  w.views["mask"] = {"h.0.attn.bias", f32, Shape({1, 1, 2, 2}),
                     w.views.begin()->second.bytes.first(16)};
  w.views["masked"] = {"h.1.attn.masked_bias", f32, Shape(),
                       w.views.begin()->second.bytes.first(4)};
  w.views["score"] = {"score.weight", f32, Shape({1}), w.views.begin()->second.bytes.first(4)};
  TensorView head = w.views.at("transformer.wte.weight");
  head.name = "lm_head.weight";
  w.views["head"] = head;
  const auto file = w.written(folder / "b");
  const auto matched = match_tensors(file, *c.model());
  EXPECT_EQ(count(*matched), c.model()->parameters().size());
  const TensorView& t = *matched->find("transformer.h.1.mlp.c_fc.weight");
  EXPECT_EQ(t.name, "transformer.h.1.mlp.c_fc.weight");
  std::vector<float> read(t.shape.elements());
  copy_as_f32(t, read);
  EXPECT_EQ(read, w.values.at("transformer.h.1.mlp.c_fc.weight"));
}

// Files of GPT-NeoX from before transformers 5 call the head embed_out.
TEST(Weights, OlderNamesAreFound) {
  TempFolder folder;
  const auto model_with = [](const char* tied) {
    return models::parse_config(
        std::string(R"({"model_type":"gpt_neox","vocab_size":65,"hidden_size":16,)"
                    R"("intermediate_size":24,"num_hidden_layers":1,"num_attention_heads":2,)"
                    R"("tie_word_embeddings":)") +
            tied + "}",
        "config.json");
  };
  const models::ModelPtr model = model_with("false");
  Weights w(*model);
  w.views.at("lm_head.weight").name = "embed_out.weight";
  w.views["frequencies"] = {"gpt_neox.layers.0.attention.rotary_emb.inv_freq", f32, Shape({1}),
                            w.views.begin()->second.bytes.first(4)};
  const auto file = w.written(folder / "old");
  const auto matched = match_tensors(file, *model);
  EXPECT_EQ(count(*matched), model->parameters().size());
  const TensorView& head = *matched->find("lm_head.weight");
  EXPECT_EQ(head.name, "lm_head.weight");
  std::vector<float> read(static_cast<size_t>(head.shape.elements()));
  copy_as_f32(head, read);
  EXPECT_EQ(read, w.values.at("lm_head.weight"));
  EXPECT_TRUE(has_other_head(*file, *model_with("true")));
  EXPECT_FALSE(has_other_head(*file, *model)) << "config.json does not tie it";
}

// config.json ties the head, the file holds another one: loaded untied, as transformers does, and
// written so.
TEST(Weights, ATiedHeadThatDiffersIsLoadedUntied) {
  TempFolder folder;
  const Gpt2Config c = small();
  Weights w(c);
  write_file_atomically(folder.path() / "config.json", c.json());
  w.written(folder.path());
  EXPECT_TRUE(read_definition(folder.path())->file_names().tied.has_value());
  std::vector<float> head(65 * 8, 0.5f);
  w.views["lm_head.weight"] = {"lm_head.weight", f32, Shape({65, 8}),
                               std::as_bytes(std::span(head))};
  w.written(folder.path());
  const models::ModelPtr model = read_definition(folder.path());
  EXPECT_FALSE(model->file_names().tied.has_value());
  EXPECT_EQ(model->parameters().back().name, "lm_head.weight");
  testing::internal::CaptureStderr();
  const ModelFolder opened = open_model(folder.path(), {.reads_tokenizer = false});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("lm_head.weight"), std::string::npos) << said;
  std::vector<float> read(head.size());
  opened.read("lm_head.weight", read);
  EXPECT_EQ(read, head);
  EXPECT_NE(opened.definition->config_json(f32).find("\"tie_word_embeddings\": false"),
            std::string::npos);
}

TEST(Weights, WhatDoesNotMatchIsNamed) {
  TempFolder folder;
  const Gpt2Config c = small();
  const auto error_after = [&](auto&& change, const Gpt2Config& config) {
    Weights w(c);
    change(w.views);
    const auto file = w.written(folder / "damaged");
    return test::user_error_of([&] { match_tensors(file, *config.model()); });
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
  expect(error_after(nothing, other), "config.json does not know the tensor 'transformer.h.1.");
  other.n_layer = 3;
  expect(error_after(nothing, other), "transformer.h.2.ln_1.weight [8] is missing");
  other = c;
  other.bias = false;
  expect(error_after(nothing, other), "config.json does not know the tensor");
  other = c;
  other.tie_word_embeddings = false;
  expect(error_after(nothing, other), "lm_head.weight [65,8] is missing");
  const std::vector<float> zeros(8);
  expect(error_after(
             [&](Views& v) {
               v["x"] = {"ln_f.bias", f32, Shape({8}), std::as_bytes(std::span(zeros))};
             },
             c),
         "does not know the tensor 'ln_f.bias' [8]");
}

TEST(Weights, AFolderRoundTrip) {
  TempFolder folder;
  const Gpt2Config c = small();
  const Weights w(c);
  std::vector<TensorView> list;
  for (const auto& [name, view] : w.views) list.push_back(view);
  write_model_files(folder.path(), *c.model(), list);
  const auto file = std::make_shared<WeightFiles>(folder.path());
  EXPECT_EQ(SafetensorsFile(folder / kSingleWeights).metadata().at("format"), "pt");
  EXPECT_EQ(count(*match_tensors(file, *read_definition(folder.path()))), list.size());
  list.pop_back();
  EXPECT_THROW(write_model_files(folder.path(), *c.model(), list), InternalError);
}

/// The small GPT-2 in two shards with an index, all of which can be changed before they are
/// written.
struct Shards {
  Shards() : weights(small()) {
    for (const auto& [name, view] : weights.views)
      shard_of[name] = shard_of.size() % 2 == 0 ? "a.safetensors" : "b.safetensors";
    index = shard_of;
  }
  void write(const fs::path& folder) const {
    create_folder(folder);
    std::map<std::string, std::vector<TensorView>> files;
    for (const auto& [name, file] : shard_of) files[file].push_back(weights.views.at(name));
    for (const auto& [file, list] : files) write_safetensors(folder / file, list);
    write_file_atomically(folder / "model.safetensors.index.json",
                          Json{{"metadata", {{"total_size", 1}}}, {"weight_map", index}}.dump());
  }
  Weights weights;
  std::map<std::string, std::string> shard_of, index;
};

TEST(WeightShards, AreReadAsOne) {
  TempFolder folder;
  const Shards shards;
  shards.write(folder.path());
  write_file_atomically(folder / "config.json", small().json());
  EXPECT_TRUE(holds_model(folder.path()));
  const auto files = std::make_shared<WeightFiles>(folder.path());
  const auto matched = match_tensors(files, *read_definition(folder.path()));
  ASSERT_EQ(count(*matched), shards.weights.views.size());
  for (const auto& [name, view] : shards.weights.views)
    EXPECT_TRUE(std::ranges::equal(matched->find(name)->bytes, view.bytes)) << name;
}

TEST(WeightShards, WhatDoesNotAddUpIsNamed) {
  TempFolder folder;
  int count = 0;
  const auto error_after = [&](auto&& change) {
    Shards shards;
    const fs::path place = folder / std::to_string(++count);
    change(shards);
    shards.write(place);
    if (fs::exists(place / "gone.safetensors")) fs::remove(place / "gone.safetensors");
    return test::user_error_of([&] { WeightFiles files(place); });
  };
  const auto expect = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find("model.safetensors.index.json"), std::string::npos) << message;
  };
  const std::string bias = "transformer.ln_f.bias";
  expect(error_after([&](Shards& s) { s.shard_of[bias] = s.index[bias] = "gone.safetensors"; }),
         "the shard gone.safetensors is missing; copy or download the folder again");
  expect(error_after([&](Shards& s) {
           s.index[bias] = s.shard_of[bias] == "a.safetensors" ? "b.safetensors" : "a.safetensors";
         }),
         "the tensor 'transformer.ln_f.bias' is in ");
  expect(error_after([&](Shards& s) { s.index["more"] = "a.safetensors"; }),
         "the tensor 'more' is not in a.safetensors");
  expect(error_after([&](Shards& s) { s.index[bias] = "../a.safetensors"; }),
         "must be in a file of this folder");
  expect(error_after([&](Shards& s) { s.index.clear(); }), "\"weight_map\"");

  Shards twice;
  twice.write(folder / "twice");
  std::vector<TensorView> all;
  for (const auto& [name, view] : twice.weights.views) all.push_back(view);
  write_safetensors(folder / "twice" / "b.safetensors", all);
  expect(test::user_error_of([&] { WeightFiles files(folder / "twice"); }), "is in two shards");
}

// A message names the first ten faults and counts the rest.
TEST(WeightShards, ManyFaultsAreCounted) {
  TempFolder folder;
  Weights w(small());
  for (auto& [name, view] : w.views) view.shape = Shape({view.shape.elements(), 1});
  const auto files = w.written(folder / "m");
  const std::string message = test::user_error_of([&] { match_tensors(files, *small().model()); });
  size_t named = 0;
  for (size_t at = 0; (at = message.find("must have the shape", at)) != std::string::npos; ++at)
    ++named;
  EXPECT_EQ(named, 10u) << message;
  EXPECT_NE(message.find(fmt::format("and {} more", w.views.size() - 10)), std::string::npos)
      << message;
}

}  // namespace
}  // namespace brrr::io
