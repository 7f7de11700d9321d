// The simulation of a program whose collectives run beside its kernels.
#include "runtime/ranks/overlap.h"

#include <gtest/gtest.h>

#include <vector>

namespace brrr {
namespace {

TEST(Overlap, IsTheSumWhereEverythingIsAwaitedAtOnce) {
  const Overlap o = simulate(std::vector<TimedKernel>{{1}, {2, true}, {3, false, 1}});
  EXPECT_DOUBLE_EQ(o.seconds, 6);
  EXPECT_DOUBLE_EQ(o.link_seconds, 2);
  EXPECT_DOUBLE_EQ(o.waited_seconds, 2);
  EXPECT_DOUBLE_EQ(o.hidden(), 0);
}

TEST(Overlap, HidesWhatFitsBehindKernels) {
  const Overlap o = simulate(std::vector<TimedKernel>{{1}, {2, true}, {3}, {1, false, 1}});
  EXPECT_DOUBLE_EQ(o.seconds, 5);
  EXPECT_DOUBLE_EQ(o.waited_seconds, 0);
  EXPECT_DOUBLE_EQ(o.hidden(), 1);
}

TEST(Overlap, RunsCollectivesOneAfterTheOther) {
  // The second begins at 4, when the first is done, and ends at 7; the last kernel waits from 3.
  const Overlap o =
      simulate(std::vector<TimedKernel>{{1}, {3, true}, {1}, {3, true}, {1}, {2, false, 3}});
  EXPECT_DOUBLE_EQ(o.seconds, 9);
  EXPECT_DOUBLE_EQ(o.link_seconds, 6);
  EXPECT_DOUBLE_EQ(o.waited_seconds, 4);
  EXPECT_NEAR(o.hidden(), 1.0 / 3, 1e-12);
}

TEST(Overlap, EndsWithTheLastCollective) {
  const Overlap o = simulate(std::vector<TimedKernel>{{1}, {3, true}, {1}});
  EXPECT_DOUBLE_EQ(o.seconds, 4);
  EXPECT_DOUBLE_EQ(o.waited_seconds, 2);
  EXPECT_DOUBLE_EQ(simulate({}).hidden(), 1);
}

}  // namespace
}  // namespace brrr
