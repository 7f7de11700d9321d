// Learning rates: nanoGPT's cosine at its corners, and the other shapes.
#include "optim/schedule.h"

#include <gtest/gtest.h>

namespace brrr::optim {
namespace {

TEST(Schedule, CosineIsNanoGpts) {
  const Schedule s{ScheduleKind::cosine, 1e-3, 1e-4, 100, 2000};
  EXPECT_DOUBLE_EQ(s.at(0), 1e-3 * 1 / 101);  // nanoGPT: learning_rate * (it + 1) / (warmup + 1)
  EXPECT_DOUBLE_EQ(s.at(99), 1e-3 * 100 / 101);
  EXPECT_DOUBLE_EQ(s.at(100), 1e-3);
  EXPECT_NEAR(s.at(1050), 0.5 * (1e-3 + 1e-4), 1e-18);  // half way
  EXPECT_DOUBLE_EQ(s.at(2000), 1e-4);
  EXPECT_DOUBLE_EQ(s.at(1'000'000), 1e-4);
  for (int64_t step = 1; step <= 100; ++step) EXPECT_GT(s.at(step), s.at(step - 1));
  for (int64_t step = 101; step <= 2000; ++step) EXPECT_LT(s.at(step), s.at(step - 1));
}

TEST(Schedule, LinearEndsAtTheFloor) {
  const Schedule s{ScheduleKind::linear, 1.0, 0.0, 10, 110};
  EXPECT_DOUBLE_EQ(s.at(10), 1.0);
  EXPECT_DOUBLE_EQ(s.at(60), 0.5);
  EXPECT_DOUBLE_EQ(s.at(85), 0.25);
  EXPECT_DOUBLE_EQ(s.at(110), 0.0);
}

TEST(Schedule, ConstantWithAndWithoutWarmup) {
  const Schedule plain{ScheduleKind::constant, 0.5, 0.1, 10, 100};
  const Schedule warm{ScheduleKind::constant_with_warmup, 0.5, 0.1, 9, 100};
  EXPECT_EQ(plain.at(0), 0.5);
  EXPECT_EQ(plain.at(1000), 0.5);
  EXPECT_DOUBLE_EQ(warm.at(0), 0.05);
  EXPECT_EQ(warm.at(9), 0.5);
  EXPECT_EQ(warm.at(1000), 0.5);
}

TEST(Schedule, DegenerateLengthsStayFinite) {
  const Schedule none{ScheduleKind::cosine, 1e-3, 1e-4, 0, 0};
  EXPECT_EQ(none.at(0), 1e-4);
  const Schedule all_warmup{ScheduleKind::cosine, 1e-3, 1e-4, 10, 5};
  for (int64_t step = 0; step < 20; ++step) {
    EXPECT_GT(all_warmup.at(step), 0);
    EXPECT_LE(all_warmup.at(step), 1e-3);
  }
}

TEST(Schedule, NamesAreThoseOfTheOptions) {
  for (const char* name : {"cosine", "linear", "constant", "constant_with_warmup"})
    EXPECT_NO_THROW(schedule_kind(name)) << name;
  EXPECT_THROW(schedule_kind("polynomial"), UserError);
}

}  // namespace
}  // namespace brrr::optim
