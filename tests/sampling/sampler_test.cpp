// The choice of the next token against the definition: sort everything, cut, draw.

#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "sampling/stop_strings.h"
#include "support/temp_folder.h"

namespace brrr::infer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// The tokens that may be chosen and their shares, as the definition says.
std::vector<std::pair<int32_t, double>> choices(const Sampling& s,
                                                const std::vector<float>& logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t id) {
    return static_cast<double>(logits[static_cast<size_t>(id)]);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  if (s.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(s.top_k)));
  std::vector<std::pair<int32_t, double>> all;
  double total = 0;
  for (int32_t id : order) {
    all.emplace_back(id, std::exp((logit(id) - logit(order[0])) / s.temperature));
    total += all.back().second;
  }
  double sum = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    sum += all[i].second;
    if (sum < s.top_p * total) continue;
    all.resize(i + 1);
    break;
  }
  for (auto& [id, weight] : all) weight /= sum;
  return all;
}

std::vector<float> random_logits(size_t n, bool has_ties) {
  std::mt19937 random(static_cast<uint32_t>(n));
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> x(n);
  for (float& v : x) v = has_ties ? std::round(normal(random)) : normal(random);
  return x;
}

TEST(Sampler, DrawsWhatTheDefinitionAllowsAsOftenAsItSays) {
  for (const size_t n : {size_t{1}, size_t{5}, size_t{65}, size_t{3000}})
    for (const bool has_ties : {false, true})
      for (const Sampling s :
           {Sampling{0.8, 0, 1.0, 1}, Sampling{0.8, 20, 1.0, 2}, Sampling{1.3, 0, 0.7, 3},
            Sampling{1.0, 7, 0.5, 4}, Sampling{1.0, 2999, 1.0, 5}, Sampling{20.0, 0, 0.95, 6}}) {
        SCOPED_TRACE(testing::Message() << n << " tokens, ties " << has_ties << ", top-k "
                                        << s.top_k << ", top-p " << s.top_p);
        const std::vector<float> logits = random_logits(n, has_ties);
        const auto allowed = choices(s, logits);
        Sampler sampler(s, 0);
        constexpr int kDraws = 1000;
        std::vector<int> counts(n);
        for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(sampler.next(logits))];
        int seen = 0;
        for (const auto& [id, share] : allowed) {
          const int count = counts[static_cast<size_t>(id)];
          const double deviation = std::sqrt(kDraws * share * (1 - share));
          EXPECT_NEAR(count, kDraws * share, 6 * deviation + 1) << id;
          seen += count;
        }
        EXPECT_EQ(seen, kDraws) << "no token that is not allowed";
      }
}

TEST(Sampler, TheLikeliestOfEqualOnesIsTheFirst) {
  std::vector<float> logits(50257, -2.0f);
  logits[30000] = logits[400] = logits[50256] = 5;
  EXPECT_EQ(Sampler({0, 0, 1.0, 1}, 0).next(logits), 400);
  EXPECT_EQ(Sampler({1.0, 1, 1.0, 1}, 0).next(logits), 400);
  Sampler two({1.0, 2, 1.0, 1}, 0);
  for (int i = 0; i < 200; ++i) {
    const int32_t id = two.next(logits);
    EXPECT_TRUE(id == 400 || id == 30000) << id;
  }
}

TEST(Sampler, WhatIsMaskedIsNeverDrawnAndWhatIsNoNumberIsRefused) {
  std::vector<float> logits(1000, -kInf);
  logits[17] = 1;
  logits[900] = 1;
  for (const Sampling s : {Sampling{1.0, 0, 1.0, 1}, Sampling{1.0, 200, 1.0, 1},
                           Sampling{1.0, 0, 0.9, 1}, Sampling{0, 0, 1.0, 1}}) {
    Sampler sampler(s, 0);
    for (int i = 0; i < 100; ++i) {
      const int32_t id = sampler.next(logits);
      EXPECT_TRUE(id == 17 || id == 900) << id;
    }
    std::vector<float> broken = logits;
    broken.back() = std::numeric_limits<float>::quiet_NaN();
    EXPECT_USER_ERROR(sampler.next(broken), "NaN logits");
  }
}

TEST(Sampler, MinPLeavesOutWhatIsFarBelowTheLikeliest) {
  const std::vector<float> logits = random_logits(3000, false);
  const float top = *std::max_element(logits.begin(), logits.end());
  for (const Sampling base : {Sampling{2.0, 0, 1.0, 1}, Sampling{2.0, 500, 0.99, 1}}) {
    Sampling s = base;
    s.min_p = 0.2;
    Sampler sampler(s, 0);
    std::set<int32_t> drawn;
    for (int i = 0; i < 2000; ++i) drawn.insert(sampler.next(logits));
    size_t allowed = 0;
    for (const float x : logits) allowed += std::exp((x - top) / 2.0f) >= 0.2f;
    EXPECT_EQ(drawn.size(), allowed);
    for (const int32_t id : drawn)
      EXPECT_GE(std::exp((logits[static_cast<size_t>(id)] - top) / 2.0f), 0.2f);
  }
}

// As transformers' RepetitionPenaltyLogitsProcessor and the API of OpenAI define them.
TEST(Sampler, PenaltiesOfWhatWasSaid) {
  const std::vector<float> logits = {2.0f, 1.9f, 1.8f, -1.0f};
  Sampling repetition{.temperature = 0, .repetition_penalty = 1.5};
  Sampler a(repetition, 0);
  a.read(std::vector<int32_t>{0, 3});
  EXPECT_EQ(a.next(logits), 1) << "2 / 1.5 is below 1.9";
  EXPECT_EQ(a.next(logits), 2);
  EXPECT_EQ(a.next(logits), 0) << "all of them are divided, once";
  Sampling presence{.temperature = 0, .presence_penalty = 0.15};
  Sampler b(presence, 0);
  b.read(std::vector<int32_t>{1, 2});
  EXPECT_EQ(b.next(logits), 0) << "the prompt does not count";
  EXPECT_EQ(b.next(logits), 1);
  EXPECT_EQ(b.next(logits), 0) << "1.85, once and for all";
  EXPECT_EQ(b.next(logits), 0);
  Sampling frequency{.temperature = 0, .frequency_penalty = 0.15};
  Sampler c(frequency, 0);
  std::vector<int32_t> made(6);
  for (int32_t& id : made) id = c.next(logits);
  EXPECT_EQ(made, (std::vector<int32_t>{0, 1, 0, 2, 1, 0})) << "each time counts";
  // A negative logit is multiplied: it falls, too.
  Sampler d(repetition, 0);
  d.read(std::vector<int32_t>{0});
  EXPECT_EQ(d.next(std::vector<float>{-1.0f, -1.2f}), 1);
}

TEST(StopStrings, EndATextAndHoldBackWhatMayBegin) {
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{100}}) {
    StopStrings stop({"END", "\n\n", ""});
    const std::string text = "ab EN\nEEND tail END";
    std::string got;
    for (size_t at = 0; at < text.size() && !stop.found(); at += piece) {
      got += stop.add(std::string_view(text).substr(at, piece));
      EXPECT_TRUE(text.starts_with(got)) << got;
    }
    EXPECT_TRUE(stop.found());
    EXPECT_EQ(got, "ab EN\nE") << piece;
    EXPECT_EQ(stop.add("more"), "");
    EXPECT_EQ(stop.finish(), "");
  }
  StopStrings stop({"END"});
  EXPECT_EQ(stop.add("xEN"), "x");
  EXPECT_EQ(stop.finish(), "EN");
  EXPECT_FALSE(stop.found());
  StopStrings none({});
  EXPECT_EQ(none.add("text"), "text");
}

TEST(Sampler, TheSameSeedDrawsTheSameTokens) {
  const std::vector<float> logits = random_logits(3000, false);
  const auto draws = [&](uint32_t seed, uint32_t number) {
    Sampler sampler({1.0, 200, 0.9, seed}, number);
    std::vector<int32_t> ids(50);
    for (int32_t& id : ids) id = sampler.next(logits);
    return ids;
  };
  EXPECT_EQ(draws(1, 0), draws(1, 0));
  EXPECT_NE(draws(1, 0), draws(2, 0));
  EXPECT_NE(draws(1, 0), draws(1, 1));
}

}  // namespace
}  // namespace brrr::infer
