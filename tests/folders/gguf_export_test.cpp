// GGUF export: exported files have the planned size and read back with the same weights, settings
// and tokens; models and tokenizers that GGUF cannot represent are refused.

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/rng.h"
#include "folders/chat_template.h"
#include "folders/gguf/gguf_export.h"
#include "folders/gguf/gguf_hyperparameters.h"
#include "folders/sentence_folder.h"
#include "formats/json_file.h"
#include "models/llama/llama_config.h"
#include "support/temp_folder.h"
#include "text/gguf/gguf_tokenizer.h"
#include "text/gguf/gguf_vocabulary.h"
#include "text/ranked/ranked_tokens.h"

namespace brrr::test {
namespace {

using io::GgufExport;
using io::GgufFileKind;

fs::path golden_gguf(const std::string& name) {
  return fs::path(BRRR_SOURCE_DIR) / "tests/golden/gguf" / (name + ".gguf");
}

io::ModelFolder open_exported(const fs::path& path) {
  const models::Head head = io::read_definition(path)->task().head;
  if (head == models::Head::next_token) return io::open_model(path);
  return io::open_model(
      path, {.task = io::read_sentence_settings(path).task, .head = io::TaskHead::fresh});
}

std::map<std::string, std::vector<float>> weights_of(const io::ModelFolder& model) {
  std::map<std::string, std::vector<float>> weights;
  for (const models::ParameterInfo& p : model.definition->parameters()) {
    std::vector<float>& values = weights[p.name];
    values.resize(static_cast<size_t>(p.shape.elements()));
    model.read(p.name, values);
  }
  return weights;
}

void write_folder(const io::ModelFolder& model, const fs::path& folder) {
  const auto weights = weights_of(model);
  std::vector<TensorView> views;
  for (const models::ParameterInfo& p : model.definition->parameters())
    views.push_back({p.name, DType::f32, p.shape, std::as_bytes(std::span(weights.at(p.name)))});
  io::write_model_files(folder, *model.definition, views);
  model.tokenizer->save(folder);
}

class GgufRoundTrip : public ::testing::TestWithParam<std::string> {
 protected:
  /// The copy has the model's weights, settings, and llama.cpp's tokens.
  void expect_same(const io::ModelFolder& model, const io::ModelFolder& copy) const {
    EXPECT_EQ(weights_of(copy), weights_of(model));
    const auto config = [](const io::ModelFolder& m) {
      io::Json json = io::parse_json(m.definition->config_json(DType::f32), "config");
      json.erase("pad_token_id");
      json.erase("architectures");
      return json;
    };
    if (GetParam() == "gptneox") {  // its tied head is written out
      EXPECT_EQ(copy.definition->sizes().layers, model.definition->sizes().layers);
    } else {
      EXPECT_EQ(config(copy), config(model));
    }
    const io::Json texts = io::parse_json(read_file(golden_gguf("x").parent_path() / "texts.json"),
                                          "texts.json")[GetParam()];
    for (const io::Json& item : texts)
      EXPECT_EQ(
          copy.tokenizer->encode(item["text"].get<std::string>(), {.add_special_tokens = true}),
          item["ids"].get<std::vector<int32_t>>())
          << item["text"];
  }
  TempFolder folder;
};

TEST_P(GgufRoundTrip, KeepsAGgufFile) {
  const io::ModelFolder model = open_exported(golden_gguf(GetParam()));
  const GgufExport plan(model, GgufFileKind::f32);
  plan.write(folder / "m.gguf");
  EXPECT_EQ(fs::file_size(folder / "m.gguf"), plan.bytes());
  expect_same(model, open_exported(folder / "m.gguf"));
}

TEST_P(GgufRoundTrip, KeepsAFolder) {
  const io::ModelFolder model = open_exported(golden_gguf(GetParam()));
  if (GetParam() == "bert") return;  // its head has another form in a folder
  fs::create_directory(folder / "hf");
  write_folder(model, folder / "hf");
  const io::ModelFolder from_folder = open_exported(folder / "hf");
  const GgufExport plan(from_folder, GgufFileKind::f32);
  plan.write(folder / "m.gguf");
  EXPECT_EQ(fs::file_size(folder / "m.gguf"), plan.bytes());
  expect_same(model, open_exported(folder / "m.gguf"));
}

TEST_P(GgufRoundTrip, HasThePlannedSizeInEveryKind) {
  const io::ModelFolder model = open_exported(golden_gguf(GetParam()));
  const auto& names = io::gguf_file_kinds();
  for (size_t i = 0; i < names.size(); ++i) {
    const auto kind = io::gguf_file_kind(names[i]);
    ASSERT_EQ(kind, static_cast<GgufFileKind>(i));
    const GgufExport plan(model, *kind);
    plan.write(folder / "m.gguf");
    EXPECT_EQ(fs::file_size(folder / "m.gguf"), plan.bytes()) << names[i];
    const io::ModelFolder copy = open_exported(folder / "m.gguf");
    const auto weights = weights_of(copy), expected = weights_of(model);
    ASSERT_EQ(weights.size(), expected.size());
    for (const auto& [name, values] : expected) {
      double loss = 0, norm = 0;
      for (size_t k = 0; k < values.size(); ++k) {
        loss += std::pow(static_cast<double>(weights.at(name)[k]) - values[k], 2);
        norm += std::pow(static_cast<double>(values[k]), 2);
      }
      EXPECT_LE(loss, 0.15 * 0.15 * norm) << names[i] << " " << name;
    }
  }
}

// Blocks of the type that is asked for are not quantised again.
TEST_P(GgufRoundTrip, CopiesBlocksOfTheSameType) {
  const io::ModelFolder model = open_exported(golden_gguf(GetParam()));
  GgufExport(model, GgufFileKind::q8_0).write(folder / "a.gguf");
  const io::ModelFolder first = open_exported(folder / "a.gguf");
  GgufExport(first, GgufFileKind::q8_0).write(folder / "b.gguf");
  const io::GgufFile a(folder / "a.gguf"), b(folder / "b.gguf");
  for (const io::GgufTensor& t : a.tensors()) {
    const io::GgufTensor* const copy = b.find_tensor(t.name);
    ASSERT_NE(copy, nullptr) << t.name;
    if (std::string_view(t.type->name) == "Q8_0") {
      EXPECT_TRUE(std::ranges::equal(t.bytes, copy->bytes)) << t.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, GgufRoundTrip,
                         ::testing::Values("llama", "llama3", "qwen2", "qwen3", "gemma3", "gpt2",
                                           "gptneox", "bert"),
                         [](const auto& test) { return test.param; });

TEST(GgufMixtures, AreThoseOfLlamaCpp) {
  const auto type = [](const io::GgufMixture& mixture, const char* name, Shape shape) {
    return std::string(io::gguf_type_of(mixture, name, shape).type->name);
  };
  const io::GgufMixture medium{GgufFileKind::q4_k_m, 16, true};
  const Shape wide({512, 256}), narrow({512, 96}), odd({512, 20});
  EXPECT_EQ(type(medium, "output.weight", wide), "Q6_K");
  EXPECT_EQ(type(medium, "token_embd.weight", wide), "Q4_K");
  EXPECT_EQ(type({GgufFileKind::q4_k_m, 16, false}, "token_embd.weight", wide), "Q6_K");
  std::string more;
  for (int layer = 0; layer < 16; ++layer)
    more += type(medium, fmt::format("blk.{}.attn_v.weight", layer).c_str(), wide) == "Q6_K" ? '6'
                                                                                             : '4';
  EXPECT_EQ(more, "6644644644644666");
  EXPECT_EQ(type(medium, "blk.0.ffn_down.weight", wide), "Q6_K");
  EXPECT_EQ(type(medium, "blk.2.ffn_down.weight", wide), "Q4_K");
  EXPECT_EQ(type(medium, "blk.0.attn_q.weight", wide), "Q4_K");
  EXPECT_EQ(type(medium, "blk.0.attn_qkv.weight", wide), "Q5_K");
  EXPECT_EQ(type(medium, "blk.0.attn_q.weight", narrow), "Q5_0");
  EXPECT_EQ(type(medium, "blk.0.attn_qkv.weight", narrow), "Q5_1");
  EXPECT_EQ(type(medium, "blk.0.ffn_down.weight", narrow), "Q8_0");
  EXPECT_EQ(type(medium, "blk.0.attn_q.weight", odd), "F16");
  EXPECT_EQ(type(medium, "blk.0.attn_norm.weight", Shape({256})), "F32");
  EXPECT_EQ(type(medium, "blk.0.attn_q.bias", Shape({256})), "F32");
  EXPECT_EQ(type(medium, "position_embd.weight", wide), "F32");
  EXPECT_EQ(type({GgufFileKind::q4_0, 16, true}, "output.weight", wide), "Q6_K");
  EXPECT_EQ(type({GgufFileKind::f16, 16, true}, "output.weight", odd), "F16");
  EXPECT_EQ(io::gguf_file_kind("q4_k_m"), GgufFileKind::q4_k_m);
  EXPECT_EQ(io::gguf_file_kind("Q3_K"), std::nullopt);
  EXPECT_EQ(io::file_type_of(GgufFileKind::q4_k_m), 15);
}

/// A config.json with what differs from a small Llama.
models::ModelPtr llama_with(const io::Json& changes) {
  io::Json config = {{"model_type", "llama"},    {"hidden_size", 8},
                     {"intermediate_size", 4},   {"num_hidden_layers", 1},
                     {"num_attention_heads", 2}, {"num_key_value_heads", 2},
                     {"vocab_size", 3},          {"max_position_embeddings", 16},
                     {"rms_norm_eps", 1e-5}};
  config.update(changes);
  return models::parse_config(config.dump(), "config.json");
}

TEST(GgufHyperparameters, RefusesWhatFilesCannotSay) {
  const auto refusal = [](const models::ModelPtr& model) {
    return user_error_of([&] { io::gguf_hyperparameters(*model, "m"); });
  };
  EXPECT_EQ(refusal(llama_with({{"model_type", "qwen3"}, {"attention_bias", true}})),
            "m: attention_bias of a qwen3 cannot be written into a GGUF file: llama.cpp has no "
            "such biases");
  EXPECT_EQ(refusal(llama_with({{"model_type", "qwen2"},
                                {"use_sliding_window", true},
                                {"max_window_layers", 0},
                                {"sliding_window", 4}})),
            "m: the sliding window of a qwen2 cannot be written into a GGUF file: llama.cpp has "
            "none");
  const io::Json llama3 = {{"rope_type", "llama3"},
                           {"factor", 8.0},
                           {"low_freq_factor", 1.0},
                           {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 8192}};
  EXPECT_EQ(
      refusal(llama_with(
          {{"model_type", "qwen2"}, {"use_sliding_window", false}, {"rope_scaling", llama3}})),
      "m: rope_type llama3 cannot be written into a GGUF file: llama.cpp reads it of llama "
      "models alone");
  const auto gpt2 = [&](const char* activation) {
    return models::parse_config(io::Json{{"model_type", "gpt2"},
                                         {"vocab_size", 3},
                                         {"n_positions", 8},
                                         {"n_embd", 8},
                                         {"n_layer", 1},
                                         {"n_head", 2},
                                         {"activation_function", activation}}
                                    .dump(),
                                "config.json");
  };
  EXPECT_EQ(refusal(gpt2("relu")),
            "m: activation_function relu cannot be written into a GGUF file: llama.cpp computes "
            "gelu_new");
  const models::Architecture& modern = models::find_architecture("modernbert");
  models::Description d;
  d.settings = modern.defaults();
  d.vocabulary = 16;
  d.context = 16;
  EXPECT_EQ(refusal(modern.describe(d)),
            "m: models of the type modernbert are not written as GGUF files; those that are: "
            "llama, mistral, qwen2, qwen3, gemma3, gpt2, gpt_neox, bert");
  const io::GgufHyperparameters mistral = io::gguf_hyperparameters(
      *llama_with({{"model_type", "mistral"}, {"sliding_window", 4}}), "m");
  EXPECT_EQ(mistral.notes,
            std::vector<std::string>{"llama.cpp ignores the sliding window of this architecture, "
                                     "so that it differs from token 5 on"});
}

std::vector<std::string> vocabulary_notes(const io::Tokenizer& tokenizer, int64_t size,
                                          io::GgufMetadata& keys) {
  return io::add_gguf_vocabulary(tokenizer, {"m", size, {}}, keys);
}

TEST(GgufVocabulary, HoldsTokenizersThatBrrrMakes) {
  const std::string text = "the cat sat on the mat \u00e9\u4e2d, the bat sat on the rat\n";
  for (const auto& made : {io::make_byte_tokenizer(), io::make_char_tokenizer(text),
                           io::train_bpe(text + text + text, 270)}) {
    io::GgufMetadata keys;
    vocabulary_notes(*made, made->vocab_size() + 3, keys);
    const io::GgufOutput output(keys, {});
    const io::GgufFile file(std::as_bytes(std::span(output.header())), "x.gguf");
    const auto read = io::read_gguf_tokenizer(file);
    EXPECT_EQ(read->encode(text), made->encode(text)) << made->kind();
    EXPECT_EQ(read->decode(made->encode(text)), text) << made->kind();
  }
}

TEST(GgufVocabulary, HoldsTokensByRank) {
  io::RankedTokens ranks;
  for (int byte = 0; byte < 256; ++byte) ranks.tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"th", "he", "the", " t", " the", "at"})
    ranks.tokens.emplace_back(token);
  ranks.pattern = R"( ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  ranks.special = {"<|end|>"};
  ranks.end_of_text = static_cast<int32_t>(ranks.tokens.size());
  const auto made = io::make_ranked_tokenizer(ranks, {{"tokenizer.model", "IQ== 0\n"}}, "x");
  io::GgufMetadata keys;
  vocabulary_notes(*made, made->vocab_size(), keys);
  const io::GgufOutput output(keys, {});
  const io::GgufFile file(std::as_bytes(std::span(output.header())), "x.gguf");
  const std::string text = "the cat that heats the  bath";
  EXPECT_EQ(io::read_gguf_tokenizer(file)->encode(text), made->encode(text));
  EXPECT_EQ(io::read_gguf_tokenizer(file)->end_of_text(), ranks.end_of_text);
}

TEST(GgufVocabulary, RefusesWhatFilesCannotHold) {
  io::GgufMetadata keys;
  const auto characters = io::make_char_tokenizer("ab");
  EXPECT_USER_ERROR(vocabulary_notes(*characters, 1, keys),
                    "m: the tokenizer has 2 tokens, the model's table 1 rows");
  const auto mark = io::make_char_tokenizer("a \u2581");
  EXPECT_USER_ERROR(vocabulary_notes(*mark, 3, keys),
                    "m: its tokenizer cannot be written into a GGUF file: it has the character "
                    "U+2581, which stands for a space there");
  TempFolder folder;
  write_file_atomically(
      folder / "tokenizer.json",
      R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}})");
  const auto unigram = io::load_tokenizer(folder.path());
  EXPECT_USER_ERROR(vocabulary_notes(*unigram, 2, keys), "its model is Unigram; those that can: ");
}

TEST(GgufExportWrite, KeepsTheTemplateAndHowTextsAreSampled) {
  TempFolder folder;
  fs::create_directory(folder / "hf");
  write_folder(io::open_model(golden_gguf("llama")), folder / "hf");
  write_file_atomically(folder / "hf/chat_template.jinja", "{{ messages[0].content }}!");
  write_file_atomically(folder / "hf/generation_config.json",
                        R"({"temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.125,
                            "repetition_penalty": 1.25})");
  GgufExport(io::open_model(folder / "hf"), GgufFileKind::f32).write(folder / "m.gguf");
  const auto chat = io::ChatTemplate::read(folder / "m.gguf");
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(chat->render({{"user", "hello"}}, std::tm{}), "hello!");
  const io::GenerationSettings s = io::open_model(folder / "m.gguf").generation;
  EXPECT_EQ(s.temperature, 0.5);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_EQ(s.top_p, 0.75);
  EXPECT_EQ(s.min_p, 0.125);
  EXPECT_EQ(s.repetition_penalty, 1.25);
  GgufExport(io::open_model(folder / "m.gguf"), GgufFileKind::f32).write(folder / "n.gguf");
  EXPECT_EQ(read_file(folder / "n.gguf").size(), read_file(folder / "m.gguf").size());
}

TEST(GgufExportWrite, KeepsWhatAGgufFileSaysOfItsModel) {
  TempFolder folder;
  io::GgufMetadata keys;
  const io::GgufFile file(golden_gguf("llama"));
  for (const auto& [key, value] : file.metadata())
    if (key != "general.name") keys.copy(key, value);
  keys.text("general.name", "Tiny").text("general.license", "mit").count("general.file_type", 7);
  std::vector<io::GgufPlanned> tensors;
  for (const io::GgufTensor& t : file.tensors())
    tensors.push_back({std::string(t.name), t.shape, t.type});
  io::GgufOutput(keys, tensors)
      .write(folder / "a.gguf", [&](const io::GgufPlanned& t, std::span<std::byte> out) {
        std::ranges::copy(file.find_tensor(t.name)->bytes, out.begin());
      });
  GgufExport(io::open_model(folder / "a.gguf"), GgufFileKind::f16).write(folder / "b.gguf");
  const io::GgufFile copy(folder / "b.gguf");
  EXPECT_EQ(copy.text("general.name"), "Tiny");
  EXPECT_EQ(copy.text("general.license"), "mit");
  EXPECT_EQ(copy.integer("general.file_type"), 1);
}

TEST(GgufExportWrite, RefusesNumbersThatATypeCannotHold) {
  TempFolder folder;
  const io::ModelFolder model = io::open_model(golden_gguf("llama"));
  fs::create_directory(folder / "hf");
  auto weights = weights_of(model);
  weights.at("model.layers.0.mlp.up_proj.weight")[3] = 1e6f;
  std::vector<TensorView> views;
  for (const models::ParameterInfo& p : model.definition->parameters())
    views.push_back({p.name, DType::f32, p.shape, std::as_bytes(std::span(weights.at(p.name)))});
  io::write_model_files(folder / "hf", *model.definition, views);
  model.tokenizer->save(folder / "hf");
  const io::ModelFolder large = io::open_model(folder / "hf");
  EXPECT_USER_ERROR(GgufExport(large, GgufFileKind::f16).write(folder / "m.gguf"),
                    "model.layers.0.mlp.up_proj.weight holds 1000000, which F16 cannot hold; "
                    "write F32 or BF16");
  EXPECT_FALSE(fs::exists(folder / "m.gguf"));
  EXPECT_NO_THROW(GgufExport(large, GgufFileKind::bf16).write(folder / "m.gguf"));
}

TEST(GgufExportWrite, LeavesTheOldFileWhereTheDiskIsFull) {
  TempFolder folder;
  const io::ModelFolder model = io::open_model(golden_gguf("qwen2"));
  write_file_atomically(folder / "m.gguf", "old");
  ::setenv("BRRR_FAULT", "gguf.write=enospc", 1);
  EXPECT_USER_ERROR(GgufExport(model, GgufFileKind::q8_0).write(folder / "m.gguf"),
                    "No space left on device");
  ::unsetenv("BRRR_FAULT");
  EXPECT_EQ(read_file(folder / "m.gguf"), "old");
}

}  // namespace
}  // namespace brrr::test
