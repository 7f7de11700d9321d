// A rank that holds the others up is named once, with what it costs them.

#include "train/ranks/rank_watch.h"

#include <gtest/gtest.h>

#include <random>

namespace brrr::train {
namespace {

/// Ranks whose steps take as long as the slowest computes, and 2 ms for bytes.
class Ranks {
 public:
  explicit Ranks(std::vector<double> compute_ms) : compute_ms_(std::move(compute_ms)) {
    std::vector<std::string> hosts;
    for (size_t i = 0; i < compute_ms_.size(); ++i) hosts.push_back("host" + std::to_string(i));
    watch_.emplace(hosts);
  }
  void set(size_t rank, double ms) { compute_ms_[rank] = ms; }
  std::vector<std::string> run(int steps) {
    std::vector<std::string> lines;
    for (int i = 0; i < steps; ++i) {
      std::vector<RankStep> readings;
      double slowest = 0;
      for (const double ms : compute_ms_) {
        RankStep& r = readings.emplace_back();
        r.seconds = 1e-3 * ms * (1 + 0.02 * noise_(random_));
        slowest = std::max(slowest, r.seconds);
      }
      for (RankStep& r : readings) {
        const double computed = r.seconds;
        r.seconds = slowest + 0.002;
        r.waited_seconds = r.seconds - computed;
        r.bytes_sent = 1000;
        r.process_bytes = i % 2 == 0 ? 5e6 : 0;
      }
      if (auto line = watch_->add(readings)) lines.push_back(*line);
    }
    return lines;
  }
  RankWatch& watch() { return *watch_; }

 private:
  std::vector<double> compute_ms_;
  std::optional<RankWatch> watch_;
  std::mt19937 random_{7};
  std::normal_distribution<double> noise_;
};

TEST(RankWatch, EqualRanksAreNotNamed) {
  Ranks four({100, 102, 99, 103});
  EXPECT_TRUE(four.run(500).empty());
  Ranks one({100});
  EXPECT_TRUE(one.run(100).empty());
}

TEST(RankWatch, AStragglerIsNamedOnceWithItsCost) {
  Ranks ranks({100, 100, 100, 130});
  const std::vector<std::string> lines = ranks.run(400);
  ASSERT_EQ(lines.size(), 1u);
  // 30 ms of steps of 132 ms.
  EXPECT_EQ(lines[0].find("rank 3 (host3) is 1.3x slower than the median of the others: "), 0u)
      << lines[0];
  EXPECT_NE(lines[0].find("so that they wait 23% of each step for it"), std::string::npos)
      << lines[0];
  // Another one later has a line of its own; the first does not come back.
  ranks.set(3, 100);
  EXPECT_TRUE(ranks.run(100).empty());
  ranks.set(1, 150);
  ASSERT_EQ(ranks.run(100).size(), 1u);
  ranks.set(1, 100);
  ranks.set(3, 150);
  EXPECT_TRUE(ranks.run(100).empty());
}

TEST(RankWatch, OfTwoRanksTheSlowerIsNamed) {
  Ranks ranks({160, 100});
  const std::vector<std::string> lines = ranks.run(100);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].find("rank 0 (host0) is 1.6x slower"), 0u) << lines[0];
}

// Other work on a machine for one block of steps is no straggler, nor is what costs little.
TEST(RankWatch, OneSlowBlockOrASmallCostIsNone) {
  Ranks ranks({100, 100, 100});
  EXPECT_TRUE(ranks.run(21).empty());
  ranks.set(2, 200);
  EXPECT_TRUE(ranks.run(20).empty());
  ranks.set(2, 100);
  EXPECT_TRUE(ranks.run(100).empty());
  ranks.set(2, 108);
  EXPECT_TRUE(ranks.run(200).empty());
}

TEST(RankWatch, MeansAreOfTheStepsSinceTheLastOnes) {
  Ranks ranks({100, 50});
  EXPECT_TRUE(ranks.watch().take_means().empty());
  ranks.run(10);
  const std::vector<RankStep> means = ranks.watch().take_means();
  ASSERT_EQ(means.size(), 2u);
  EXPECT_NEAR(means[0].seconds, 0.102, 0.003);
  EXPECT_NEAR(means[1].computed_seconds(), 0.050, 0.002);
  EXPECT_EQ(means[1].bytes_sent, 1000);
  EXPECT_EQ(means[1].process_bytes, 5e6);
  EXPECT_TRUE(ranks.watch().take_means().empty());
}

}  // namespace
}  // namespace brrr::train
