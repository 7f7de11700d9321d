#include "train/team_size.h"

#include <gtest/gtest.h>

#include <map>

namespace brrr::train {
namespace {

// Steps taken with each number of threads when a step takes seconds(threads, step).
template <typename F>
std::map<int, int> run(TeamSize& team, int steps, F&& seconds) {
  std::map<int, int> used;
  for (int i = 0; i < steps; ++i) {
    const int threads = team.threads();
    ++used[threads];
    team.record(seconds(threads, i));
  }
  return used;
}

TEST(TeamSize, KeepsAllThreadsOnAMachineOfItsOwn) {
  TeamSize team(8);
  auto used = run(team, 1000, [](int threads, int) { return 1.0 / threads; });
  EXPECT_EQ(used[4] + used[1], 6);  // the one early trial
  EXPECT_EQ(team.threads(), 8);
}

TEST(TeamSize, LeavesTheTeamThatWaits) {
  TeamSize team(2);
  auto used = run(team, 1000, [](int threads, int) { return threads == 2 ? 10.0 : 1.0; });
  EXPECT_GT(used[1], 950);
  EXPECT_GT(used[2], 5) << "it never looks whether the load has gone";
}

TEST(TeamSize, FollowsTheLoad) {
  TeamSize team(2);
  auto loaded = [](int threads, int) { return threads == 2 ? 10.0 : 1.5; };
  auto idle = [](int threads, int) { return threads == 2 ? 0.5 : 1.0; };
  run(team, 200, idle);
  EXPECT_EQ(team.threads(), 2);
  run(team, 200, loaded);
  EXPECT_EQ(team.threads(), 1);
  run(team, 200, idle);
  EXPECT_EQ(team.threads(), 2);
}

TEST(TeamSize, HasNothingToChooseWithOneThread) {
  TeamSize team(1);
  auto used = run(team, 500, [](int, int i) { return i % 7 + 1.0; });
  EXPECT_EQ(used[1], 500);
}

}  // namespace
}  // namespace brrr::train
