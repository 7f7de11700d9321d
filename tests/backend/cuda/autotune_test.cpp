// Choosing the fastest way with a clock that the test sets.

#include "backend/cuda/autotune.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>

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

TEST_F(Choosing, TheHopelessRunOnce) {
  Autotune tune{fs::path()};
  std::vector<int> runs(2);
  tune.choose("a", {"x", "y"}, [&](size_t i) {
    ++runs[i];
    return i == 0 ? 1.0 : 100.0;
  });
  EXPECT_EQ(runs, (std::vector<int>{Autotune::kRounds, 1}));
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
  EXPECT_EQ(read_file(file), "brrr autotune 3\na\tway1\t3 1.25 inf\nb\tway0\t\n");
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
  for (const char* text : {"", "other 1\na\tway1\t\n", "brrr autotune 2\na\tway0\t\n",
                           "brrr autotune 3\na\tno such way\t\n",
                           "brrr autotune 3\na\n\tway1\t\na\t\na\tway1\na\t\t\n\0x\n"}) {
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
