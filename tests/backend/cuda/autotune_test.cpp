// Choosing the fastest way with a clock that the test sets.

#include "backend/cuda/products/autotune.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <random>

#include "base/file.h"

namespace brrr::cuda {
namespace {

class Choosing : public testing::Test {
 protected:
  Choosing() {
    std::string pattern = (fs::temp_directory_path() / "brrr-autotune-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Choosing() override { fs::remove_all(folder_); }

  /// Ways that take so many milliseconds, some more in the first round.
  size_t choose(Autotune& tune, const std::string& key, std::vector<double> ms,
                double first_round = 0) {
    std::vector<std::string> names;
    for (size_t i = 0; i < ms.size(); ++i) names.push_back(fmt::format("way{}", i));
    std::vector<int> runs(ms.size());
    const size_t best = tune.choose(key, names, [&](size_t i) {
      ++runs_;
      return ms[i] + (runs[i]++ == 0 ? first_round : 0);
    });
    return best;
  }

  fs::path folder_;
  int runs_ = 0;
};

TEST_F(Choosing, TheFastestWins) {
  Autotune tune{fs::path()};
  EXPECT_EQ(choose(tune, "a", {3, 1, 2}), 1u);
  EXPECT_EQ(choose(tune, "b", {1, 3, 2}), 0u);
  EXPECT_EQ(choose(tune, "c", {5, 4, 3, 2}), 3u);
}

TEST_F(Choosing, TheFirstStaysUnlessAnotherGains) {
  Autotune tune{fs::path()};
  EXPECT_EQ(choose(tune, "a", {1.00, 0.99}), 0u) << "within the noise";
  EXPECT_EQ(choose(tune, "b", {1.00, 0.95}), 1u);
  EXPECT_EQ(choose(tune, "c", {1.00, 1.00}), 0u);
}

TEST_F(Choosing, WhatDoesNotRunIsNotTaken) {
  Autotune tune{fs::path()};
  EXPECT_EQ(choose(tune, "a", {INFINITY, 7}), 1u);
  EXPECT_EQ(choose(tune, "b", {7, INFINITY}), 0u);
  EXPECT_EQ(choose(tune, "c", {INFINITY, INFINITY}), 0u);
}

TEST_F(Choosing, OneSlowRoundDoesNotDecide) {
  Autotune tune{fs::path()};
  int calls = 0;
  const size_t best = tune.choose("a", {"x", "y"}, [&](size_t i) {
    ++calls;
    return i == 1 && calls == 4 ? 2.5 : i == 1 ? 1.0 : 1.2;
  });
  EXPECT_EQ(best, 1u);
  EXPECT_EQ(calls, 2 * Autotune::kRounds);
}

TEST_F(Choosing, TheHopelessRunTwice) {
  Autotune tune{fs::path()};
  std::vector<int> runs(3);
  tune.choose("a", {"x", "y", "z"}, [&](size_t i) {
    ++runs[i];
    return i == 0 ? 1.0 : i == 1 ? 100.0 : INFINITY;
  });
  EXPECT_EQ(runs, (std::vector<int>{Autotune::kRounds, Autotune::kRoundsOfHopeless, 1}));
}

/// A way that was disturbed when it first ran is not given up.
TEST_F(Choosing, OneSlowStartDoesNotDecide) {
  Autotune tune{fs::path()};
  std::vector<int> runs(2);
  const size_t best = tune.choose(
      "a", {"x", "y"}, [&](size_t i) { return i == 1 ? (runs[i]++ == 0 ? 9.0 : 1.0) : 1.2; });
  EXPECT_EQ(best, 1u);
}

TEST_F(Choosing, AGainWithinTheSpreadIsNone) {
  Autotune tune{fs::path()};
  const auto choose_with = [&](const std::string& key, std::vector<double> first,
                               std::vector<double> second, int& calls) {
    std::vector<size_t> runs(2);
    calls = 0;
    return tune.choose(key, {"x", "y"}, [&](size_t i) {
      ++calls;
      const std::vector<double>& ms = i == 0 ? first : second;
      return ms[runs[i]++ % ms.size()];
    });
  };
  int calls = 0;
  // 5% faster in the middle, and either is 10% off its middle at times: more rounds do not help.
  EXPECT_EQ(choose_with("a", {1.00, 0.90, 1.10}, {0.95, 0.86, 1.05}, calls), 0u);
  EXPECT_EQ(calls, 2 * Autotune::kMostRounds);
  EXPECT_EQ(choose_with("b", {1.00, 1.01, 0.99}, {0.95, 0.94, 0.96}, calls), 1u);
  EXPECT_EQ(calls, 2 * Autotune::kMostRounds) << "a small gain is looked at again";
  EXPECT_EQ(choose_with("d", {1.00, 1.01, 0.99}, {0.85, 0.84, 0.86}, calls), 1u);
  EXPECT_EQ(calls, 2 * Autotune::kRounds);
  // Where the first does not run, the next that does is the default.
  EXPECT_EQ(tune.choose("c", {"x", "y", "z"},
                        [](size_t i) { return i == 0   ? INFINITY
                                              : i == 1 ? 1.0
                                                       : 0.99; }),
            1u);
}

/// Among ways that beat the first, one that is listed earlier stays before one that is no faster.
TEST_F(Choosing, AmongEqualsTheEarlierWins) {
  Autotune tune{fs::path()};
  EXPECT_EQ(choose(tune, "a", {2, 1.005, 1}), 1u);
  EXPECT_EQ(choose(tune, "b", {2, 1.05, 1}), 2u);
}

/// Ways that take the same but for noise, and one that is truly faster, many times over.
TEST_F(Choosing, NoiseIsNotTakenForAGain) {
  Autotune tune{fs::path()};
  std::mt19937 random(7);
  const auto trial = [&](int number, double gain) {
    std::normal_distribution<double> noise(0, 0.03);
    std::uniform_real_distribution<double> disturbed(0, 1);
    return tune.choose(fmt::format("{} {}", number, gain), {"a", "b", "c", "d"}, [&](size_t i) {
      const double slow = disturbed(random) < 0.05 ? 1.5 : 1.0;  // somebody else's kernel
      return (i == 2 ? 1 - gain : 1.0) * (1 + noise(random)) * slow;
    });
  };
  constexpr int kTrials = 400;
  int left = 0, found = 0;
  for (int i = 0; i < kTrials; ++i) {
    left += trial(i, 0.0) != 0;
    found += trial(i, 0.15) == 2;
  }
  EXPECT_LE(left, kTrials / 100) << "the default was left for a way that is no faster";
  EXPECT_GE(found, kTrials * 9 / 10) << "a gain of 15% was not seen";
}

TEST_F(Choosing, WhatWasChosenIsRemembered) {
  const fs::path file = folder_ / "cache" / "tune.txt";
  {
    Autotune tune(file);
    EXPECT_EQ(choose(tune, "shape a", {3, 1}), 1u);
    EXPECT_EQ(choose(tune, "shape b", {1, 3}), 0u);
    EXPECT_EQ(tune.measured(), 2);
    EXPECT_FALSE(fs::exists(file)) << "a write for every choice";
    tune.save();
  }
  Autotune again(file);
  runs_ = 0;
  EXPECT_EQ(choose(again, "shape a", {1, 3}), 1u) << "measured again";
  EXPECT_EQ(choose(again, "shape b", {3, 1}), 0u) << "measured again";
  EXPECT_EQ(runs_, 0);
  EXPECT_EQ(again.measured(), 0);
}

TEST_F(Choosing, WhatEveryWayTookStandsBesideTheChoice) {
  const fs::path file = folder_ / "tune.txt";
  Autotune tune(file);
  choose(tune, "a", {3, 1.25, INFINITY});
  choose(tune, "b", {7});
  tune.save();
  EXPECT_EQ(read_file(file), "brrr autotune 4\na\tway1\t3 1.25 inf\t0 0 -\nb\tway0\t\t\n");
}

TEST_F(Choosing, TwoProcessesKeepBothChoices) {
  const fs::path file = folder_ / "tune.txt";
  Autotune one(file), other(file);
  choose(one, "a", {2, 1});
  choose(other, "b", {2, 1});
  one.save();
  other.save();
  const Autotune third(file);
  EXPECT_TRUE(third.remembered("a", {"way0", "way1"}).has_value());
  EXPECT_TRUE(third.remembered("b", {"way0", "way1"}).has_value());
}

TEST_F(Choosing, ADamagedFileIsNone) {
  for (const char* text :
       {"", "other 1\na\tway1\t\t\n", "brrr autotune 3\na\tway0\t1 2\n",
        "brrr autotune 3\na\tway0\t1 2\t0 0\n", "brrr autotune 4\na\tway0\t1 2\n",
        "brrr autotune 4\na\tno such way\t\t\n",
        "brrr autotune 4\na\n\tway1\t\t\na\t\na\tway1\na\t\t\t\n\0x\n"}) {
    const fs::path file = folder_ / "tune.txt";
    write_file_atomically(file, text);
    Autotune tune(file);
    EXPECT_EQ(choose(tune, "a", {3, 1}), 1u) << text;
    EXPECT_EQ(tune.measured(), 1) << text;
    fs::remove(file);
  }
}

TEST_F(Choosing, AFolderThatCannotBeWrittenIsNoError) {
  write_file_atomically(folder_ / "file", "x");
  Autotune tune(folder_ / "file" / "tune.txt");
  EXPECT_EQ(choose(tune, "a", {3, 1}), 1u);
  EXPECT_NO_THROW(tune.save());
  EXPECT_EQ(tune.remembered("a", {"way0", "way1"}), std::optional<size_t>(1));
}

}  // namespace
}  // namespace brrr::cuda
