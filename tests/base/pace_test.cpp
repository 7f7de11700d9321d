#include "base/pace.h"

#include <gtest/gtest.h>

namespace brrr {
namespace {

TEST(RecentSteps, OneSlowStepDoesNotMoveThePace) {
  RecentSteps steps;
  EXPECT_EQ(steps.pace().tokens_per_second, 0);
  steps.add(4, 0, 100);  // it compiles
  EXPECT_DOUBLE_EQ(steps.pace().step_ms, 4000) << "nothing else is known yet";
  for (int i = 0; i < 20; ++i) steps.add(i == 7 ? 2.0 : 0.1, 0.01, 100);
  EXPECT_DOUBLE_EQ(steps.pace().step_ms, 100);
  EXPECT_DOUBLE_EQ(steps.pace().tokens_per_second, 1000);
  EXPECT_NEAR(steps.pace().waiting_share, 0.2 / 3.9, 1e-9);
}

TEST(RecentSteps, FollowsALastingChange) {
  RecentSteps steps;
  for (int i = 0; i < 1000; ++i) steps.add(0.1, 0, 100);
  for (size_t i = 0; i < RecentSteps::kSteps / 2; ++i) steps.add(0.2, 0, 100);
  EXPECT_DOUBLE_EQ(steps.pace().step_ms, 150) << "half of the window";
  for (size_t i = 0; i < RecentSteps::kSteps / 2; ++i) steps.add(0.2, 0, 100);
  EXPECT_DOUBLE_EQ(steps.pace().step_ms, 200);
  EXPECT_DOUBLE_EQ(steps.pace().tokens_per_second, 500);
}

TEST(TimeLeft, IsNotSaidBeforeItIsWorthSomething) {
  double now = 50;
  TimeLeft left(1000, [&] { return now; });
  EXPECT_EQ(left.seconds(), std::nullopt);
  left.note(100);  // a resumed run
  now += 60;
  left.note(104);
  EXPECT_EQ(left.seconds(), std::nullopt) << "four steps";
  now += 15;
  left.note(105);
  EXPECT_DOUBLE_EQ(left.seconds().value(), 15.0 * 895);
  left.note(1000);
  EXPECT_EQ(left.seconds(), 0);

  TimeLeft quick(1000, [&] { return now; });
  quick.note(1);
  now += 1.9;
  quick.note(500);
  EXPECT_EQ(quick.seconds(), std::nullopt) << "no two seconds";
  TimeLeft endless(0, [&] { return now; });
  endless.note(1);
  now += 100;
  endless.note(100);
  EXPECT_EQ(endless.seconds(), std::nullopt);
}

}  // namespace
}  // namespace brrr
