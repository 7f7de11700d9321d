// Races of made-up clocks.

#include "insight/profile/race.h"

#include <gtest/gtest.h>

namespace brrr::insight {
namespace {

RaceOptions rounds(int64_t n) {
  RaceOptions o;
  o.seconds = 0;
  o.least_rounds = o.most_rounds = n;
  return o;
}

TEST(Race, SaysHowMuchFaster) {
  const Race r = race([] { return 2.0; }, [] { return 1.5; }, rounds(5));
  EXPECT_DOUBLE_EQ(r.ratio, 0.75);
  EXPECT_EQ(r.rounds, 5);
  EXPECT_TRUE(r.faster());
  EXPECT_FALSE(race([] { return 1.5; }, [] { return 2.0; }, rounds(5)).faster());
}

TEST(Race, AMachineThatDriftsFavoursNobody) {
  double clock = 1;
  const auto way = [&] { return clock *= 1.1; };  // everything takes longer and longer
  const Race r = race(way, way, rounds(20));
  EXPECT_NEAR(r.ratio, 1, 0.01);
  EXPECT_FALSE(r.faster());
}

TEST(Race, WhatTheRoundsDoNotAgreeOnIsNotFaster) {
  int n = 0;
  const Race r = race([] { return 1.0; }, [&] { return ++n % 2 == 0 ? 0.5 : 1.4; }, rounds(20));
  EXPECT_LT(r.ratio, 1);
  EXPECT_FALSE(r.faster());
}

TEST(Race, SettlesBeforeWhatCounts) {
  int n = 0;
  RaceOptions o = rounds(4);
  o.settle = true;
  // The first call warms up; then every second one counts, and is fast.
  const Race r = race([] { return 1.0; }, [&] { return ++n > 1 && n % 2 == 1 ? 0.5 : 9.0; }, o);
  EXPECT_DOUBLE_EQ(r.ratio, 0.5);
  EXPECT_EQ(n, 1 + 2 * 4);
}

}  // namespace
}  // namespace brrr::insight
