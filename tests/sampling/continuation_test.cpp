// The window that a text is continued in: what is read, what is forgotten, what is run again.

#include "sampling/continuation.h"

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace brrr::infer {
namespace {

constexpr int64_t kVocabulary = 10;
const Sampling kGreedy{.temperature = 0};

/// A model that counts: after token t comes t + 1.
class Counting {
 public:
  std::span<const float> after(int32_t token) {
    logits_.assign(kVocabulary, 0);
    logits_[static_cast<size_t>((token + 1) % kVocabulary)] = 1;
    return logits_;
  }

 private:
  std::vector<float> logits_;
};

TEST(Continuation, AFullWindowForgetsItsOlderHalf) {
  Counting model;
  std::vector<size_t> lengths;
  const Window window{4, kVocabulary, [&](std::span<const int32_t> tokens) {
                        lengths.push_back(tokens.size());
                        return model.after(tokens.back());
                      }};
  const std::vector<int32_t> prompt{0, 1, 2};
  EXPECT_EQ(continue_text(window, prompt, 5, Sampler(kGreedy, 0)),
            (std::vector<int32_t>{3, 4, 5, 6, 7}));
  EXPECT_EQ(lengths, (std::vector<size_t>{3, 4, 3, 4, 3}));
  int left = 2;
  EXPECT_EQ(
      continue_text(window, prompt, 5, Sampler(kGreedy, 0), [&](int32_t) { return --left > 0; }),
      (std::vector<int32_t>{3, 4}));
  EXPECT_USER_ERROR(continue_text(window, {}, 1, Sampler(kGreedy, 0)), "has no tokens");
  const std::vector<int32_t> outside{10};
  EXPECT_USER_ERROR(continue_text(window, outside, 1, Sampler(kGreedy, 0)),
                    "token 10 of the prompt lies outside the vocabulary of 10");
}

TEST(Continuation, OnlyWhatTheCacheDoesNotHoldIsRun) {
  Counting model;
  std::vector<std::pair<int64_t, size_t>> runs;
  const CachedTokens::Run run = [&](std::span<const int32_t> tokens, int64_t position) {
    runs.emplace_back(position, tokens.size());
    return model.after(tokens.back());
  };
  CachedTokens cached;
  const std::vector<int32_t> window{0, 1, 2, 3, 4, 5, 6};
  const auto logits = [&](size_t from, size_t count, size_t longest) {
    runs.clear();
    cached.logits_of(std::span(window).subspan(from, count), longest, run);
    return runs;
  };
  using Runs = std::vector<std::pair<int64_t, size_t>>;
  EXPECT_EQ(logits(0, 7, 8), (Runs{{0, 4}, {4, 2}, {6, 1}}));
  EXPECT_EQ(logits(0, 7, 8), (Runs{{6, 1}})) << "the last token is run for its logits";
  EXPECT_EQ(logits(0, 3, 8), (Runs{{2, 1}}));
  EXPECT_EQ(logits(4, 3, 1), (Runs{{0, 1}, {1, 1}, {2, 1}})) << "no program is longer";
}

}  // namespace
}  // namespace brrr::infer
