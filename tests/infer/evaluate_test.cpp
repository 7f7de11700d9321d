// Loss of a text in windows that begin with the begin token.

#include "infer/evaluate.h"

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "base/rng.h"

namespace brrr::test {
namespace {

io::ModelFolder golden_model(const std::string& name) {
  return io::open_model(fs::path(BRRR_SOURCE_DIR) / "tests/golden/gguf" / (name + ".gguf"));
}

TEST(EvaluateText, EachWindowBeginsWithTheBeginToken) {
  const io::ModelFolder model = golden_model("llama");
  const std::optional<int32_t> begin = infer::begin_of_windows(*model.tokenizer);
  ASSERT_EQ(begin, 1);
  constexpr int64_t kContext = 16, kTokens = 70;
  RngStream random({3, 0}, 0);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kTokens; ++i)
    ids.push_back(3 + static_cast<int32_t>(random.next_below(200)));
  const auto loss_of = [&](std::vector<int32_t> text, std::optional<int32_t> of_windows) {
    text.insert(text.begin(), *begin);
    return infer::evaluate(model, io::TokenSource::from_ids(std::move(text)), cpu::cpu_backend(),
                           {.batch_size = 3, .context = kContext, .begin = of_windows});
  };
  const infer::Evaluation whole = loss_of(ids, begin);
  EXPECT_EQ(whole.tokens, kTokens);
  double sum = 0;
  for (int64_t at = 0; at < kTokens; at += kContext) {
    const infer::Evaluation window =
        loss_of({ids.begin() + at, ids.begin() + std::min(at + kContext, kTokens)}, std::nullopt);
    sum += window.loss * static_cast<double>(window.tokens);
  }
  EXPECT_NEAR(whole.loss, sum / kTokens, 1e-5 * whole.loss);
  EXPECT_NE(whole.loss, loss_of(ids, std::nullopt).loss);
}

TEST(EvaluateText, TokenizersThatBeginNothingHaveNoBeginOfWindows) {
  EXPECT_EQ(infer::begin_of_windows(*golden_model("gpt2").tokenizer), std::nullopt);
  EXPECT_EQ(infer::begin_of_windows(*io::make_byte_tokenizer()), std::nullopt);
}

}  // namespace
}  // namespace brrr::test
