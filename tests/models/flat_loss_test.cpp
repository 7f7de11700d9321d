// The loss and every gradient of sequences that lie one behind the other are those of the sequences
// alone, whatever lies outside them.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "backend/cpu/target.h"
#include "models/bert/bert_config.h"
#include "models/initialise.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "runtime/parameters.h"

namespace brrr {
namespace {

using models::Head;
using Gradients = std::map<std::string, std::vector<float>>;

/// Inputs of a loss graph by name.
struct LossInputs {
  std::map<std::string, std::vector<int32_t>> ids;
  std::vector<float> values;
};

struct LossAndGradients {
  double loss = 0;
  Gradients gradients;
  void add(const LossAndGradients& other) {
    loss += other.loss;
    for (const auto& [name, g] : other.gradients) {
      std::vector<float>& sum = gradients[name];
      sum.resize(g.size());
      for (size_t i = 0; i < g.size(); ++i) sum[i] += g[i];
    }
  }
};

LossAndGradients run_loss(const models::Model& model, const Graph& graph, const LossInputs& in) {
  PipelineOptions options;
  options.loss = "loss";
  Engine engine(cpu::cpu_backend());
  const size_t p = engine.add(run_pipeline(graph, engine.backend().target(), options));
  engine.allocate();
  load_parameters(engine, models::initial_weights(model, 3));
  Call call{p, {}, {"loss"}};
  const float one = 1;
  call.set("loss_scale", std::span(&one, 1));
  for (const auto& [name, v] : in.ids)
    if (graph.find_input(name) != kNoNode) call.set(name, std::span<const int32_t>(v));
  if (!in.values.empty()) call.set("values", std::span<const float>(in.values));
  LossAndGradients result;
  result.loss = engine.run(std::span(&call, 1))[0][0];
  for (const models::ParameterInfo& info : model.parameters()) {
    std::vector<std::byte> room;
    const auto bytes = engine.read_output(p, "grad:" + info.name, room);
    const auto* first = reinterpret_cast<const float*>(bytes.data());
    result.gradients[info.name].assign(first, first + info.shape.elements());
  }
  return result;
}

double norm_of_all(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

void expect_equal(const LossAndGradients& got, const LossAndGradients& expected) {
  EXPECT_NEAR(got.loss, expected.loss, 1e-5 * expected.loss);
  double whole = 0;
  for (const auto& [name, g] : expected.gradients) whole += std::pow(norm_of_all(g), 2);
  whole = std::sqrt(whole);
  for (const auto& [name, g] : expected.gradients) {
    std::vector<float> gap = got.gradients.at(name);
    for (size_t i = 0; i < gap.size(); ++i) gap[i] -= g[i];
    // The gradient of a key's bias is zero but for rounding.
    EXPECT_LT(norm_of_all(gap), 1e-5 * norm_of_all(g) + 1e-7 * whole) << name;
  }
}

constexpr int64_t kFlatLengths[] = {7, 1, 33, 60, 2};
constexpr int64_t kUnusedTokens = 25;  // outside all sequences

int32_t drawn(int64_t i, int32_t below) {
  return static_cast<int32_t>((i * 7919 + i * i * 31) % below);
}

class FlatEncoderLoss : public testing::TestWithParam<Head> {};
INSTANTIATE_TEST_SUITE_P(Heads, FlatEncoderLoss,
                         testing::Values(Head::masked_token, Head::classes, Head::values,
                                         Head::token_classes));

TEST_P(FlatEncoderLoss, IsThatOfSeparateTexts) {
  constexpr int32_t kVocabulary = 101, kLabels = 3;
  models::BertConfig config;
  config.vocab_size = kVocabulary;
  config.max_position_embeddings = 64;
  config.hidden_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.intermediate_size = 96;
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = config.classifier_dropout = 0;
  config.task.head = GetParam();
  if (GetParam() != Head::masked_token) config.task.labels = {"a", "b", "c"};
  const models::ModelPtr model = config.model();
  const bool by_text = GetParam() == Head::classes || GetParam() == Head::values;

  LossAndGradients expected;
  LossInputs all;
  all.ids["starts"] = {0};
  int64_t drawn_so_far = 0;
  for (const int64_t length : kFlatLengths) {
    LossInputs one;
    one.ids["lengths"] = {static_cast<int32_t>(length)};
    for (int64_t i = 0; i < length; ++i) {
      const int64_t n = ++drawn_so_far;
      one.ids["tokens"].push_back(drawn(n, kVocabulary));
      one.ids["types"].push_back(i > length / 2);
      one.ids["positions"].push_back(static_cast<int32_t>(i));
      if (!by_text)
        one.ids["targets"].push_back(
            n % 3 == 0 ? -1 : drawn(n + 5, GetParam() == Head::token_classes ? kLabels : 101));
    }
    if (by_text) one.ids["targets"] = {GetParam() == Head::values ? 0 : drawn(length, kLabels)};
    if (GetParam() == Head::values) one.values = {0.5f, static_cast<float>(length) * 0.01f, -1.0f};
    expected.add(run_loss(*model, model->loss(1, length), one));
    for (const auto& [name, v] : one.ids)
      if (name != "lengths") all.ids[name].insert(all.ids[name].end(), v.begin(), v.end());
    all.values.insert(all.values.end(), one.values.begin(), one.values.end());
    all.ids["starts"].push_back(static_cast<int32_t>(all.ids["tokens"].size()));
  }
  // One more sequence, which is empty, and tokens outside all sequences.
  all.ids["starts"].push_back(all.ids["starts"].back());
  const size_t tokens = all.ids["tokens"].size() + kUnusedTokens;
  for (const char* name : {"tokens", "types", "positions"}) all.ids[name].resize(tokens, 1);
  all.ids["targets"].resize(by_text ? std::size(kFlatLengths) + 1 : tokens, -1);
  if (!all.values.empty()) all.values.resize(kLabels * (std::size(kFlatLengths) + 1), 9);
  const models::FlatBinding binding{static_cast<int64_t>(tokens), std::ssize(kFlatLengths) + 1,
                                    std::nullopt};
  expect_equal(run_loss(*model, model->flat_loss(binding), all), expected);
}

struct DecoderCase {
  std::string name, config;
};

/// Small models of each architecture whose blocks differ: learnt and rotary positions, shared keys,
/// windows, dropout off.
std::vector<DecoderCase> decoders() {
  return {
      {"gpt2",
       R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 101,
           "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 4, "resid_pdrop": 0,
           "embd_pdrop": 0, "attn_pdrop": 0})"},
      {"llama",
       R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 101,
           "max_position_embeddings": 64, "hidden_size": 48, "intermediate_size": 96,
           "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
           "tie_word_embeddings": false})"},
      {"gemma3",
       R"({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "vocab_size": 101,
           "max_position_embeddings": 64, "hidden_size": 48, "intermediate_size": 96,
           "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
           "head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 16,
           "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})"},
      {"gpt_neox",
       R"({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "vocab_size": 101,
           "max_position_embeddings": 64, "hidden_size": 48, "intermediate_size": 96,
           "num_hidden_layers": 2, "num_attention_heads": 4, "rotary_pct": 0.5})"}};
}

class FlatDecoderLoss : public testing::TestWithParam<DecoderCase> {};
INSTANTIATE_TEST_SUITE_P(Models, FlatDecoderLoss, testing::ValuesIn(decoders()),
                         [](const auto& row) { return row.param.name; });

TEST_P(FlatDecoderLoss, IsThatOfSeparateDocuments) {
  const models::ModelPtr model = models::parse_config(GetParam().config, GetParam().name);
  LossAndGradients expected;
  LossInputs all;
  all.ids["starts"] = {0};
  int64_t drawn_so_far = 0;
  for (const int64_t length : kFlatLengths) {
    LossInputs one;
    for (int64_t i = 0; i < length; ++i) {
      one.ids["tokens"].push_back(drawn(++drawn_so_far, 101));
      one.ids["targets"].push_back(drawn(drawn_so_far + 1, 101));
      one.ids["positions"].push_back(static_cast<int32_t>(i));
    }
    expected.add(run_loss(*model, model->loss(1, length), one));
    for (const auto& [name, v] : one.ids)
      all.ids[name].insert(all.ids[name].end(), v.begin(), v.end());
    all.ids["starts"].push_back(static_cast<int32_t>(all.ids["tokens"].size()));
  }
  all.ids["starts"].push_back(all.ids["starts"].back());
  const size_t tokens = all.ids["tokens"].size() + kUnusedTokens;
  for (const char* name : {"tokens", "positions"}) all.ids[name].resize(tokens, 1);
  all.ids["targets"].resize(tokens, -1);
  const models::FlatBinding binding{static_cast<int64_t>(tokens), std::ssize(kFlatLengths) + 1,
                                    std::nullopt};
  expect_equal(run_loss(*model, model->flat_loss(binding), all), expected);
}

}  // namespace
}  // namespace brrr
