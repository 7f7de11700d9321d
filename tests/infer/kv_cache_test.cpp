// Measures the loss of a trained Llama that reads a text token by token, with a KV cache in floats
// and with one in int8. Needs stories260K/ in $BRRR_DATA.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "backend/cpu/target.h"
#include "base/env.h"
#include "folders/model_folder.h"
#include "infer/batcher.h"

namespace brrr::infer {
namespace {

constexpr const char* kStory =
    "Once upon a time, there was a little boy named Tim. He had a small boat that he loved very "
    "much. Every day, Tim took his boat to the pond behind the house. One morning, the wind was "
    "strong, and the boat went far away. Tim was sad and cried. A big bird saw him and asked, "
    "\"Why are you sad?\" Tim said, \"My boat is gone.\" The bird flew over the water and brought "
    "the boat back. Tim was so happy that he gave the bird a piece of bread. From that day on, "
    "they were best friends and played at the pond every day.";

/// Log probabilities of the next token after each prefix of the text.
std::vector<std::vector<double>> log_probabilities(const io::ModelFolder& model,
                                                   const std::vector<int32_t>& tokens,
                                                   CachePrecision cache) {
  Batcher batcher(model.definition, cpu::cpu_backend(), model.weights, {.cache = cache});
  std::vector<std::vector<double>> rows;
  SequenceRequest request;
  request.prompt = {tokens[0]};
  request.on_logits = [&](SequenceId, std::span<const float> logits) {
    std::vector<double> row(logits.begin(), logits.end());
    const double top = *std::ranges::max_element(row);
    const double sum = std::accumulate(row.begin(), row.end(), 0.0,
                                       [&](double s, double x) { return s + std::exp(x - top); });
    for (double& x : row) x -= top + std::log(sum);
    rows.push_back(std::move(row));
  };
  const Batcher::Id id = batcher.add(std::move(request));
  for (size_t i = 1; i < tokens.size(); ++i) {
    while (batcher.step()) {
    }
    batcher.append(id, tokens[i]);
  }
  batcher.cancel(id);
  return rows;
}

TEST(KvCache, Int8KeepsTheLossOfATrainedModel) {
  const fs::path folder = fs::path(env::get("BRRR_DATA").value_or("")) / "stories260K";
  if (!io::holds_model(folder)) GTEST_SKIP() << "BRRR_DATA has no stories260K/";
  const io::ModelFolder model = io::open_model(folder);
  const std::vector<int32_t> tokens = model.tokenizer->encode(kStory);
  ASSERT_GT(tokens.size(), 150u);
  const auto exact = log_probabilities(model, tokens, CachePrecision::computed),
             integers = log_probabilities(model, tokens, CachePrecision::int8);
  ASSERT_EQ(exact.size(), tokens.size() - 1);
  ASSERT_EQ(integers.size(), exact.size());
  double loss = 0, change = 0, divergence = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const auto next = static_cast<size_t>(tokens[i + 1]);
    loss -= exact[i][next];
    change += exact[i][next] - integers[i][next];
    for (size_t v = 0; v < exact[i].size(); ++v)
      divergence += std::exp(exact[i][v]) * (exact[i][v] - integers[i][v]);
  }
  const auto count = static_cast<double>(exact.size());
  RecordProperty("loss", fmt::format("{}", loss / count));
  RecordProperty("change", fmt::format("{}", change / count));
  RecordProperty("divergence", fmt::format("{}", divergence / count));
  EXPECT_GT(divergence / count, 0);
  EXPECT_LT(divergence / count, 2e-3);
  EXPECT_LT(std::abs(change), 1e-2 * loss);
}

}  // namespace
}  // namespace brrr::infer
