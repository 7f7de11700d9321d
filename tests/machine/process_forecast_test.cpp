// The forecast of a process: pages of the program that are resident already are not counted again.
#include "machine/process_forecast.h"

#include <gtest/gtest.h>

namespace brrr::machine {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// The needed memory of a process whose file has `mapped` bytes, `program` of them resident.
int64_t needed(int64_t program, int64_t mapped, ProcessKind use = ProcessKind::training) {
  ResidentMemory now;
  now.anonymous = 4 * kMiB;
  now.code = program + 5 * kMiB;  // libraries
  now.peak = now.needed();
  now.program = program;
  now.program_mapped = mapped;
  return forecast_running({}, use, now, false).needed();
}

TEST(ProcessForecast, CountsResidentPagesOfTheProgramOnce) {
  EXPECT_EQ(needed(11 * kMiB, 20 * kMiB), needed(12 * kMiB, 20 * kMiB));
  // A program that has grown needs more memory.
  EXPECT_GT(needed(12 * kMiB, 22 * kMiB), needed(12 * kMiB, 20 * kMiB) + kMiB);
  // All of the program's code was used already.
  EXPECT_GT(needed(19 * kMiB, 20 * kMiB), needed(12 * kMiB, 20 * kMiB));
}

TEST(ProcessForecast, InferenceExecutesLessOfTheProgramThanTraining) {
  EXPECT_LT(needed(11 * kMiB, 20 * kMiB, ProcessKind::inference), needed(11 * kMiB, 20 * kMiB));
}

TEST(ProcessForecast, ALargeFileOfWhichBrrrIsAPartIsNotBroughtInWhole) {
  EXPECT_EQ(needed(100 * kMiB, 900 * kMiB), needed(100 * kMiB, 300 * kMiB));
}

}  // namespace
}  // namespace brrr::machine
