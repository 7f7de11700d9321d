#include "base/host_load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

class HostLoadTest : public testing::Test {
 protected:
  void put(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    write_file_atomically(root_ / file, text);
  }
  test::TempFolder root_;
};

TEST_F(HostLoadTest, BusyIsWhatIsNeitherIdleNorWaitingForDisks) {
  put("proc/stat", "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n");
  HostLoad load(root_.path());
  put("proc/stat", "cpu  160 10 110 900 120 0 0 0 50 0\ncpu0 1 2 3\n");
  EXPECT_NEAR(load.read().busy, 80.0 / 300, 1e-12);
  EXPECT_EQ(load.read().busy, -1) << "no time has passed";
}

TEST_F(HostLoadTest, ClocksAreAveraged) {
  EXPECT_FALSE(processor_clock_mhz(root_.path()));
  put("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3400000\n");
  put("sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq", "2400000\n");
  put("sys/devices/system/cpu/cpu3/cpufreq/scaling_cur_freq", "<unknown>\n");
  EXPECT_EQ(processor_clock_mhz(root_.path()).value_or(0), 2900);
}

TEST_F(HostLoadTest, WhatTheSystemDoesNotSayIsUnknown) {
  for (const char* text : {"", "cpu", "cpu x", "intr 5\n"}) {
    put("proc/stat", text);
    put("proc/self/statm", text);
    HostLoad load(root_.path());
    const HostReading r = load.read();
    EXPECT_EQ(r.busy, -1) << text;
    EXPECT_EQ(r.clock_mhz, -1);
    EXPECT_EQ(r.resident_bytes, -1);
  }
}

TEST_F(HostLoadTest, ThisProcess) {
  HostLoad load;
  const HostReading r = load.read();
  EXPECT_GE(r.own_processors, 0);
  const auto total = static_cast<double>(resident_memory().total());
  EXPECT_NEAR(static_cast<double>(r.resident_bytes), total, 0.2 * total);
}

}  // namespace
}  // namespace brrr
