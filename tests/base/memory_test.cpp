// Amounts of memory, and the limits that the system puts on this process.
#include "base/memory.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

TEST(Memory, AmountsAsPeopleWriteThem) {
  EXPECT_EQ(parse_memory("6GiB"), int64_t{6} << 30);
  EXPECT_EQ(parse_memory("6G"), int64_t{6} << 30);
  EXPECT_EQ(parse_memory("6 gib"), int64_t{6} << 30);
  EXPECT_EQ(parse_memory("6GB"), 6'000'000'000);
  EXPECT_EQ(parse_memory(" 6 GB "), 6'000'000'000);
  EXPECT_EQ(parse_memory("1.5MiB"), 3 << 19);
  EXPECT_EQ(parse_memory("512kB"), 512'000);
  EXPECT_EQ(parse_memory("2TiB"), int64_t{2} << 40);
  EXPECT_EQ(parse_memory("123B"), 123);
  for (const char* bad : {"", "6", "GiB", "-1GiB", "0GiB", "0.1B", "6 giga", "6GiBs", "nan GiB",
                          "inf GiB", "1e30TiB", "6,5GiB", "0x10GiB", "--fit"})
    try {
      parse_memory(bad);
      ADD_FAILURE() << bad;
    } catch (const UserError& e) {
      EXPECT_EQ(e.code(), ExitCode::kUsage);
      EXPECT_NE(std::string(e.what()).find("6GiB"), std::string::npos) << e.what();
    }
}

TEST(Memory, ASizeOfNothingIsRefusedAsSuch) {
  for (const char* bad : {"0", "-1", "0GiB", "-3 MiB"})
    EXPECT_USER_ERROR(parse_memory(bad),
                      fmt::format("expected a size above 0, such as 6GiB; got {}", bad));
}

TEST(Memory, TextIsReadBackAsAtLeastAsMuch) {
  EXPECT_EQ(memory_text(0), "0 B");
  EXPECT_EQ(memory_text(1536), "1.5 KiB");
  EXPECT_EQ(memory_text((int64_t{5} << 30) + (int64_t{1} << 29)), "5.50 GiB");
  for (int64_t bytes : {int64_t{1}, int64_t{999'999}, int64_t{1} << 20, (int64_t{1} << 20) + 1,
                        (int64_t{1} << 30) - 1, (int64_t{1} << 30) + 1, int64_t{123'456'789'012}}) {
    const int64_t back = parse_memory(memory_at_least(bytes));
    EXPECT_GE(back, bytes);
    EXPECT_LE(back, bytes + bytes / 50 + (1 << 20));
  }
}

class Limits : public ::testing::Test {
 protected:
  void put(const std::string& file, const std::string& content) {
    create_folder((folder_ / file).parent_path());
    write_file_atomically(folder_ / file, content);
  }
  void SetUp() override {
    put("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n");
  }
  test::TempFolder folder_;
  static constexpr int64_t kGiB = int64_t{1} << 30;
};

TEST_F(Limits, OfTheMachine) {
  EXPECT_EQ(installed_memory(folder_.path()), 16 * kGiB);
  const auto limit = usable_memory(folder_.path());
  ASSERT_TRUE(limit);
  EXPECT_GE(limit->bytes, 8 * kGiB);
  EXPECT_LE(limit->bytes, 8 * kGiB + resident_memory().peak);
  EXPECT_NE(limit->source.find("machine"), std::string::npos);
  EXPECT_FALSE(control_group_memory_limit(folder_.path()));
}

TEST_F(Limits, OfAControlGroupVersion2AndThoseAboveIt) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  put("sys/fs/cgroup/a/memory.max", "2147483648\n");
  put("sys/fs/cgroup/a/memory.current", "1610612736\n");
  put("sys/fs/cgroup/a/memory.stat",
      "anon 1\nfile 1610612736\nshmem 536870912\ninactive_file 1000000000\nactive_file 73741824\n");
  EXPECT_EQ(control_group_memory_limit(folder_.path()), 2 * kGiB);
  const auto limit = usable_memory(folder_.path());
  ASSERT_TRUE(limit);
  // Half a GiB is neither reclaimable nor (but for what this process has) ours.
  EXPECT_GE(limit->bytes, 2 * kGiB - kGiB / 2);
  EXPECT_LE(limit->bytes, 2 * kGiB - kGiB / 2 + resident_memory().peak);
  EXPECT_NE(limit->source.find("control group's limit of 2.00 GiB"), std::string::npos);
}

TEST_F(Limits, OfAControlGroupVersion1) {
  put("proc/self/cgroup", "9:name=systemd:/\n4:memory:/jobs/1\n0::/\n");
  put("sys/fs/cgroup/memory/jobs/1/memory.limit_in_bytes", "1073741824\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(control_group_memory_limit(folder_.path()), kGiB);
  const auto limit = usable_memory(folder_.path());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->bytes, kGiB);
  EXPECT_EQ(limit->source, "the control group's limit");
}

TEST_F(Limits, AnUnknownSystemSetsNone) {
  test::TempFolder empty;
  EXPECT_FALSE(usable_memory(empty.path()));
  EXPECT_EQ(installed_memory(empty.path()), 0);
}

TEST(Memory, OfThisProcess) {
  const ResidentMemory m = resident_memory();
  EXPECT_GT(m.anonymous, 100'000);
  EXPECT_GT(m.code, 100'000);
  EXPECT_GE(m.peak + (1 << 20), m.total());
  // Most of a program is mapped, debug information is not.
  const auto file = static_cast<int64_t>(fs::file_size("/proc/self/exe"));
  EXPECT_GT(m.program, 0);
  EXPECT_LE(m.program, m.code);
  EXPECT_LE(m.program, m.program_mapped);
  EXPECT_LE(m.program_mapped, file + (1 << 20));
}

TEST(Memory, MappedInputsAreApart) {
  test::TempFolder folder;
  constexpr size_t kBytes = size_t{8} << 20;
  write_file_atomically(folder / "data.bin", std::string(kBytes, 'x'));
  const ResidentMemory before = resident_memory();
  const MappedFile file(folder / "data.bin");
  int sum = 0;
  for (size_t i = 0; i < kBytes; i += 4096) sum += file.text()[i];
  EXPECT_EQ(sum, 'x' * static_cast<int>(kBytes / 4096));
  const ResidentMemory after = resident_memory();
  EXPECT_GE(after.inputs - before.inputs, static_cast<int64_t>(kBytes));
  EXPECT_LT(after.needed() - before.needed(), static_cast<int64_t>(kBytes / 4));
}

}  // namespace
}  // namespace brrr
