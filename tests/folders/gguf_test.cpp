// GGUF files as models: the logits of transformers and the tokens of llama.cpp on tiny random
// models of every architecture (tests/golden/make_gguf_model_goldens.py), and what is refused.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/target.h"
#include "base/rng.h"
#include "folders/chat_template.h"
#include "folders/gguf/gguf_config.h"
#include "folders/gguf/gguf_weights.h"
#include "folders/model_folder.h"
#include "folders/sentence_folder.h"
#include "formats/json_file.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "runtime/parameters.h"
#include "support/gguf_writer.h"
#include "support/long_proof.h"
#include "support/models_folder.h"
#include "support/temp_folder.h"
#include "text/gguf/gguf_tokenizer.h"

namespace brrr::test {
namespace {

using io::GgufFile;
using io::GgufType;

fs::path gguf_goldens() { return fs::path(BRRR_SOURCE_DIR) / "tests/golden/gguf"; }

std::vector<std::string> gguf_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(gguf_goldens()))
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

class GgufGolden : public ::testing::TestWithParam<std::string> {
 protected:
  fs::path path = gguf_goldens() / (GetParam() + ".gguf");
};

std::vector<float> outputs_of(const io::ModelFolder& model, std::span<const int32_t> tokens,
                              const char* output) {
  Engine engine(cpu::cpu_backend());
  const Graph graph = model.definition->forward(1, std::ssize(tokens));
  const size_t p = engine.add(run_pipeline(graph, engine.backend().target(), {}));
  engine.allocate();
  engine.load(*model.weights);
  engine.set_input<int32_t>(p, "tokens", tokens);
  if (model.definition->has_token_types())
    engine.set_input<int32_t>(p, "types", std::vector<int32_t>(tokens.size()));
  if (!model.definition->sizes().causal)
    engine.set_input<int32_t>(p, "lengths",
                              std::vector<int32_t>{static_cast<int32_t>(tokens.size())});
  engine.run(p);
  std::vector<std::byte> room;
  const auto bytes = engine.read_output(p, output, room);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST_P(GgufGolden, TokensAreThoseOfLlamaCpp) {
  const io::Json texts =
      io::parse_json(read_file(gguf_goldens() / "texts.json"), "texts.json")[GetParam()];
  const auto tokenizer = io::load_tokenizer(path);
  TempFolder folder;
  tokenizer->save(folder.path());
  const auto saved = io::load_tokenizer(folder.path());
  ASSERT_GT(texts.size(), 5u);
  for (const io::Json& item : texts) {
    const auto text = item["text"].get<std::string>();
    const auto expected = item["ids"].get<std::vector<int32_t>>();
    const auto ids = tokenizer->encode(text, {.add_special_tokens = true});
    EXPECT_EQ(ids, expected) << io::in_quotes(text);
    EXPECT_EQ(saved->encode(text, {.add_special_tokens = true}), ids) << io::in_quotes(text);
    EXPECT_EQ(saved->decode(ids), tokenizer->decode(ids)) << io::in_quotes(text);
  }
}

/// The tensor of a golden as floats.
std::vector<float> golden_floats(const io::SafetensorsFile& golden, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(golden.get(name).shape.elements()));
  io::copy_as_f32(golden.get(name), values);
  return values;
}
std::vector<int32_t> golden_ids(const io::SafetensorsFile& golden, const std::string& name) {
  const io::TensorView& t = golden.get(name);
  std::vector<int32_t> ids(static_cast<size_t>(t.shape.elements()));
  std::memcpy(ids.data(), t.bytes.data(), t.bytes.size());
  return ids;
}
/// |got - expected| / |expected|
double relative_gap(std::span<const float> got, std::span<const float> expected) {
  double gap = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    gap += std::pow(static_cast<double>(got[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(gap / norm);
}

TEST_P(GgufGolden, LogitsAreThoseOfTransformers) {
  const io::SafetensorsFile golden(gguf_goldens() / "logits.safetensors");
  const std::vector<int32_t> tokens = golden_ids(golden, GetParam() + ".tokens");
  const std::vector<float> expected = golden_floats(golden, GetParam() + ".logits");
  if (GetParam() != "bert") {
    const std::vector<float> got = outputs_of(io::open_model(path), tokens, "logits");
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_LT(relative_gap(got, expected), 1e-5);
    return;
  }
  // The vector of an encoder is the mean of its last hidden states, of length 1.
  const io::SentenceSettings settings = io::read_sentence_settings(path);
  EXPECT_EQ(settings.longest, 64);
  const std::vector<float> got =
      outputs_of(io::open_model(path, {.task = settings.task}), tokens, "embedding");
  std::vector<float> mean(got.size());
  for (size_t i = 0; i < expected.size(); ++i) mean[i % mean.size()] += expected[i];
  double square = 0;
  for (const float value : mean) square += static_cast<double>(value) * value;
  for (float& value : mean) value = static_cast<float>(value / std::sqrt(square));
  EXPECT_LT(relative_gap(got, mean), 1e-5);
}

// The tokenizer of one file with each pattern that is known.
TEST(GgufModel, PiecesOfEveryPreTokenizerAreThoseOfLlamaCpp) {
  const GgufFile file(gguf_goldens() / "qwen2.gguf");
  const io::Json all = io::parse_json(read_file(gguf_goldens() / "texts.json"), "texts.json");
  int patterns = 0;
  for (const auto& [name, texts] : all.items()) {
    if (!name.starts_with("pre:")) continue;
    ++patterns;
    GgufWriter w;
    for (const auto& [key, value] : file.metadata()) {
      const std::string_view bytes(reinterpret_cast<const char*>(value.bytes.data()),
                                   value.bytes.size());
      if (key == "tokenizer.ggml.pre")
        w.text(key, name.substr(4));
      else if (value.type == GgufType::array)
        w.key(key, value.type, GgufWriter::array(value.element, value.count, bytes));
      else if (value.type == GgufType::text)
        w.text(key, bytes);
      else
        w.key(key, value.type, bytes);
    }
    const std::string bytes = w.bytes();
    const GgufFile other(std::as_bytes(std::span(bytes)), name);
    const auto tokenizer = io::read_gguf_tokenizer(other);
    for (const io::Json& item : texts)
      EXPECT_EQ(tokenizer->encode(item["text"].get<std::string>(), {.add_special_tokens = true}),
                item["ids"].get<std::vector<int32_t>>())
          << name << ": " << item["text"];
  }
  EXPECT_GT(patterns, 9);
}

INSTANTIATE_TEST_SUITE_P(Files, GgufGolden, ::testing::ValuesIn(gguf_names()),
                         [](const auto& test) { return test.param; });

// A published file of five block types; transformers' own reader of GGUF files made the golden.
TEST(GgufModel, LogitsOfGemmaAreThoseOfTransformers) {
  const fs::path path = models_folder() / "gemma3-270m" / "gemma-3-270m-q4_k_m.gguf";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is absent";
  const io::SafetensorsFile golden(gguf_goldens() / "gemma3_270m_logits.safetensors");
  const std::vector<int32_t> tokens = golden_ids(golden, "tokens");
  const std::vector<int32_t> columns = golden_ids(golden, "columns");
  const std::vector<int32_t> likeliest = golden_ids(golden, "likeliest");
  const std::vector<float> logits = outputs_of(io::open_model(path), tokens, "logits");
  const size_t vocabulary = logits.size() / tokens.size();
  std::vector<float> got;
  for (size_t row = 0; row < tokens.size(); ++row) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * vocabulary);
    for (const int32_t column : columns) got.push_back(begin[column]);
    EXPECT_EQ(std::max_element(begin, begin + static_cast<std::ptrdiff_t>(vocabulary)) - begin,
              likeliest[row]);
  }
  EXPECT_LT(relative_gap(got, golden_floats(golden, "logits")), 1e-4);
}

/// A writer with the keys of a small Llama, but for those that `without` names.
GgufWriter small_llama(const std::string& without = "") {
  GgufWriter w;
  w.text("general.architecture", "llama");
  for (const auto& [key, value] : std::map<std::string, uint32_t>{{"context_length", 16},
                                                                  {"embedding_length", 8},
                                                                  {"block_count", 1},
                                                                  {"feed_forward_length", 4},
                                                                  {"attention.head_count", 2}})
    if (key != without) w.u32("llama." + key, value);
  w.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  w.floats("token_embd.weight", {3, 8}, std::vector<float>(24));
  return w;
}

template <typename Make>
std::string refusal_of(const GgufWriter& w, const Make& make) {
  const std::string bytes = w.bytes();
  return user_error_of(
      [&] { make(std::make_shared<const GgufFile>(std::as_bytes(std::span(bytes)), "x.gguf")); });
}

#define EXPECT_REFUSAL(writer, make, part)                \
  do {                                                    \
    const std::string message = refusal_of(writer, make); \
    EXPECT_NE(message.find(part), std::string::npos)      \
        << "expected: " << part << "\ngot: " << message;  \
  } while (false)

TEST(GgufModel, FaultsOfTheConfigurationAreNamed) {
  const auto config = [](const auto& file) { io::gguf_config(*file); };
  EXPECT_REFUSAL(GgufWriter(), config, "x.gguf: the key general.architecture is missing");
  EXPECT_REFUSAL(GgufWriter().text("general.architecture", "mamba"), config,
                 "x.gguf: the architecture 'mamba' is not supported; those that are: llama, qwen2, "
                 "qwen3, gemma3, gpt2, gptneox, bert");
  EXPECT_REFUSAL(small_llama("block_count"), config, "the key llama.block_count is missing");
  EXPECT_REFUSAL(small_llama("block_count").text("llama.block_count", "1"), config,
                 "llama.block_count must be an integer; found the string '1'");
  EXPECT_REFUSAL(GgufWriter().text("general.architecture", "llama"), config,
                 "the tensor token_embd.weight is missing, or no matrix");
  EXPECT_REFUSAL(
      small_llama().u32("llama.rope.dimension_count", 2), config,
      "llama.rope.dimension_count = 2 is not supported; expected the width of a head, 4");
  EXPECT_REFUSAL(small_llama().u32("llama.expert_count", 8), config,
                 "llama.expert_count = 8 is not supported; expected none");
  EXPECT_REFUSAL(small_llama().f32("llama.rope.freq_base", NAN), config,
                 "llama.rope.freq_base = nan is not supported; expected a number");
  EXPECT_REFUSAL(small_llama().floats("rope_freqs.weight", {2}, {1, 3}), config,
                 "'rope_freqs.weight' holds other factors than those of Llama 3");
  const std::string longrope = small_llama().text("llama.rope.scaling.type", "longrope").bytes();
  const GgufFile file(std::as_bytes(std::span(longrope)), "x.gguf");
  EXPECT_USER_ERROR(models::parse_config(io::gguf_config(file), "x.gguf"),
                    "rope_type must be default, linear, dynamic, llama3 or yarn; found 'longrope'");
}

TEST(GgufModel, KeysOfAConfigurationAreRead) {
  GgufWriter w = small_llama();
  w.text("llama.rope.scaling.type", "yarn")
      .f32("llama.rope.scaling.factor", 4)
      .u32("llama.rope.scaling.original_context_length", 8)
      .u32("llama.attention.sliding_window", 5)
      .u32("tokenizer.ggml.bos_token_id", 1)
      .u32("tokenizer.ggml.eos_token_id", 2)
      .texts("tokenizer.ggml.tokens", {"<|im_end|>", "a", "b"})
      .numbers<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {3, 1, 1});
  const std::string bytes = w.bytes();
  const GgufFile file(std::as_bytes(std::span(bytes)), "x.gguf");
  const io::Json config = io::parse_json(io::gguf_config(file), "config");
  EXPECT_EQ(config["model_type"], "mistral");
  EXPECT_EQ(config["sliding_window"], 5);
  EXPECT_EQ(config["rms_norm_eps"], 1e-5);
  EXPECT_EQ(config["rope_scaling"]["rope_type"], "yarn");
  EXPECT_EQ(config["rope_scaling"]["factor"], 4);
  EXPECT_EQ(config["rope_scaling"]["original_max_position_embeddings"], 8);
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(config["eos_token_id"], io::Json({0, 2}));
  EXPECT_NO_THROW(models::parse_config(io::gguf_config(file), "x.gguf"));
}

TEST(GgufModel, FaultsOfTensorsAreNamed) {
  const auto weights = [](const auto& file) { io::gguf_weights(file); };
  EXPECT_REFUSAL(small_llama().floats("blk.0.ssm_a", {1}, {1}), weights,
                 "the tensor 'blk.0.ssm_a' is not one of a model of the architecture llama");
  EXPECT_REFUSAL(small_llama().tensor("output.weight", {1, 256}, 16, std::string(66, '\0')),
                 weights,
                 "the tensor 'output.weight' has the type IQ2_XXS, which is not read; types that "
                 "are: F32, F16, ");
  EXPECT_REFUSAL(small_llama().floats("blk.0.attn_q.weight", {5, 1}, {1, 2, 3, 4, 5}), weights,
                 "the tensor 'blk.0.attn_q.weight' of shape [5,1] does not hold 2 heads "
                 "(llama.attention.head_count)");
  EXPECT_REFUSAL(small_llama()
                     .u32("llama.attention.head_count_kv", 0)
                     .floats("blk.0.attn_k.bias", {4}, {1, 2, 3, 4}),
                 weights, "does not hold 0 heads (llama.attention.head_count_kv)");
  EXPECT_REFUSAL(
      GgufWriter().text("general.architecture", "gpt2").floats("blk.0.ffn_up.weight", {2}, {1, 2}),
      weights, "the tensor 'blk.0.ffn_up.weight' must be a matrix; it has the shape [2]");
}

// Two heads of four rows: pairs 2 i and 2 i + 1 become rows i and i + 2.
TEST(GgufModel, RowsOfHeadsComeInOurOrder) {
  GgufWriter w = small_llama();
  w.floats("blk.0.attn_q.bias", {8}, {0, 1, 2, 3, 4, 5, 6, 7});
  const std::string bytes = w.bytes();
  const auto weights =
      io::gguf_weights(std::make_shared<const GgufFile>(std::as_bytes(std::span(bytes)), "x.gguf"));
  const TensorView& q = *weights->find("model.layers.0.self_attn.q_proj.bias");
  std::vector<float> values(8);
  weights->read(q, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(weights->find("absent"), nullptr);
}

GgufWriter small_tokenizer(const std::string& model) {
  GgufWriter w;
  w.text("tokenizer.ggml.model", model);
  return w;
}

TEST(GgufModel, FaultsOfTokenizersAreNamed) {
  const auto tokenizer = [](const auto& file) { io::read_gguf_tokenizer(*file); };
  EXPECT_REFUSAL(small_tokenizer("llama"), tokenizer,
                 "x.gguf: it holds no tokenizer (tokenizer.ggml.tokens)");
  EXPECT_REFUSAL(GgufWriter().texts("tokenizer.ggml.tokens", {"a"}), tokenizer,
                 "the key tokenizer.ggml.model is missing");
  EXPECT_REFUSAL(small_tokenizer("rwkv").texts("tokenizer.ggml.tokens", {"a"}), tokenizer,
                 "the tokenizer 'rwkv' (tokenizer.ggml.model) is not supported; those that are: "
                 "llama, gpt2, bert");
  EXPECT_REFUSAL(small_tokenizer("llama").texts("tokenizer.ggml.tokens", {"a"}), tokenizer,
                 "tokenizer.ggml.scores has 0 entries for 1 tokens");
  EXPECT_REFUSAL(small_tokenizer("llama")
                     .texts("tokenizer.ggml.tokens", {"a", "a"})
                     .numbers<float>("tokenizer.ggml.scores", GgufType::f32, {0, 0}),
                 tokenizer, "'a'");
  EXPECT_REFUSAL(small_tokenizer("llama").texts("tokenizer.ggml.tokens", {"\xff"}), tokenizer,
                 "token 0 ('\\xff') is not UTF-8");
  EXPECT_REFUSAL(small_tokenizer("llama")
                     .texts("tokenizer.ggml.tokens", {"a"})
                     .numbers<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {7}),
                 tokenizer, "tokenizer.ggml.token_type of token 0 is 7; expected 1 to 6");
  EXPECT_REFUSAL(small_tokenizer("llama")
                     .texts("tokenizer.ggml.tokens", {"<0x00>"})
                     .numbers<float>("tokenizer.ggml.scores", GgufType::f32, {0})
                     .numbers<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {6}),
                 tokenizer, "it has tokens for bytes, but none for the byte 1");
  EXPECT_REFUSAL(small_tokenizer("gpt2")
                     .text("tokenizer.ggml.pre", "klingon")
                     .texts("tokenizer.ggml.tokens", {"a"}),
                 tokenizer,
                 "the pre-tokenizer 'klingon' (tokenizer.ggml.pre) is not supported; those that "
                 "are: default, gpt-2, ");
  EXPECT_REFUSAL(small_tokenizer("bert").texts("tokenizer.ggml.tokens", {"a\nb"}), tokenizer,
                 "token 0 ('a\\x0ab') holds a line's end");
}

// Small files of several architectures with random bytes changed: a UserError, or a model that can
// be read.
TEST(GgufModel, DamagedFilesAreRefusedOrRead) {
  const auto read = [](const std::string& bytes) {
    const auto or_refused = [](const auto& action) {
      try {
        action();
      } catch (const UserError&) {
      }
    };
    or_refused([&] {
      const auto file = std::make_shared<const GgufFile>(std::as_bytes(std::span(bytes)), "x.gguf");
      or_refused([&] { models::parse_config(io::gguf_config(*file), "x.gguf"); });
      or_refused([&] {
        const auto weights = io::gguf_weights(file);
        weights->each([&](const TensorView& t) {
          std::vector<std::byte> values(static_cast<size_t>(t.shape.elements()) *
                                        bytes_of(t.dtype));
          weights->read(t, values);
        });
      });
      or_refused([&] {
        const auto tokenizer = io::read_gguf_tokenizer(*file);
        const std::string text = "a b<s>c \xc3\xa9\n";
        tokenizer->decode(tokenizer->encode(text, {.add_special_tokens = true}));
      });
    });
  };
  const fs::path seeds = fs::path(BRRR_SOURCE_DIR) / "tests/fuzz/seeds/gguf";
  for (const auto& entry : fs::directory_iterator(seeds)) {
    const std::string whole = read_file(entry.path());
    read(whole);
    RngStream random({20, 2}, 0);
    for (int round = 0; round < rounds(100'000, 500); ++round) {
      std::string damaged = whole;
      for (uint64_t changes = 1 + random.next_below(4); changes > 0; --changes)
        damaged[random.next_below(damaged.size())] =
            static_cast<char>(random.next_below(random.next_below(2) == 0 ? 256 : 8));
      read(damaged);
    }
  }
}

TEST(GgufModel, ReadsAChatTemplateWithItsTokens) {
  TempFolder folder;
  write_file_atomically(folder / "m.gguf", small_llama()
                                               .texts("tokenizer.ggml.tokens", {"<s>", "a", "b"})
                                               .u32("tokenizer.ggml.bos_token_id", 0)
                                               .text("tokenizer.chat_template",
                                                     "{{ bos_token }}{{ messages[0].content }}!")
                                               .bytes());
  const auto chat = io::ChatTemplate::read(folder / "m.gguf");
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(chat->render({{"user", "hello"}}, std::tm{}), "<s>hello!");
  write_file_atomically(folder / "n.gguf", small_llama().bytes());
  EXPECT_FALSE(io::ChatTemplate::read(folder / "n.gguf").has_value());
}

}  // namespace
}  // namespace brrr::test
