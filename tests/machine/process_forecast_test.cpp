// The forecast of a process: pages of the program that are resident already are not counted again.
#include "machine/process_forecast.h"

#include <gtest/gtest.h>

namespace brrr::machine {
namespace {

TEST(ProcessForecast, CountsTheProgramOnceHoweverMuchOfItIsResident) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto forecast = [](int64_t program, int64_t mapped) {
    ResidentMemory now;
    now.anonymous = 4 * kMiB;
    now.code = program + 5 * kMiB;  // libraries
    now.peak = now.needed();
    now.program = program;
    now.program_mapped = mapped;
    return forecast_running({}, now, false).needed();
  };
  EXPECT_EQ(forecast(2 * kMiB, 20 * kMiB), forecast(12 * kMiB, 20 * kMiB));
  // A program that has grown needs more memory.
  EXPECT_GT(forecast(2 * kMiB, 24 * kMiB), forecast(2 * kMiB, 20 * kMiB) + 2 * kMiB);
  // All of the program's code was used already.
  EXPECT_GT(forecast(19 * kMiB, 20 * kMiB), forecast(12 * kMiB, 20 * kMiB));
}

}  // namespace
}  // namespace brrr::machine
