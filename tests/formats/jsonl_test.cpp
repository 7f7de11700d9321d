#include "formats/jsonl.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using nlohmann::json;
using test::TempFolder;

TEST(Jsonl, AppendsAndReads) {
  TempFolder folder;
  const fs::path path = folder / "log.jsonl";
  EXPECT_TRUE(read_jsonl(path).empty());
  {
    JsonlWriter log(path);
    log.write({{"step", 1}, {"loss", 0.1}});
    log.write({{"step", 2}, {"loss", std::numeric_limits<double>::quiet_NaN()}});
  }
  {
    JsonlWriter log(path);
    log.write({{"note", "line\nbreak \xff"}});
  }
  const auto records = read_jsonl(path);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0]["loss"].get<double>(), 0.1);
  EXPECT_TRUE(records[1]["loss"].is_null());
  EXPECT_EQ(records[2]["note"], "line\nbreak \xef\xbf\xbd");
  EXPECT_EQ(std::ranges::count(read_file(path), '\n'), 3);
}

TEST(Jsonl, AHalfWrittenLastLineIsDropped) {
  TempFolder folder;
  const fs::path path = folder / "log.jsonl";
  const std::string whole = "{\"step\":1}\n{\"step\":2}\n";
  for (const std::string& half : {std::string("{\"step\":3"), std::string("{\"step\":3}"),
                                  std::string("{"), std::string(100, '\0')}) {
    write_file_atomically(path, whole + half);
    EXPECT_EQ(read_jsonl(path).size(), 2u);
    {
      JsonlWriter log(path);
      log.write({{"step", 9}});
    }
    EXPECT_EQ(read_file(path), whole + "{\"step\":9}\n");
  }
}

TEST(Jsonl, TruncateKeepsTheStepAndWhatHasNone) {
  TempFolder folder;
  const fs::path path = folder / "log.jsonl";
  truncate_jsonl_after(path, 5);
  EXPECT_FALSE(fs::exists(path));
  write_file_atomically(path,
                        "{\"run\":\"x\"}\n{\"step\":1}\n\n{\"step\":2 "
                        "}\n{\"step\":3}\n{\"step\":2,\"eval\":1}\n{\"st");
  truncate_jsonl_after(path, 2);
  EXPECT_EQ(read_file(path),
            "{\"run\":\"x\"}\n{\"step\":1}\n{\"step\":2 }\n{\"step\":2,\"eval\":1}\n");
  truncate_jsonl_after(path, 2);
  EXPECT_EQ(read_jsonl(path).size(), 4u);
}

// A record of the checkpoint's own step may be younger than the checkpoint.
TEST(Jsonl, TruncateDropsWhatWasWrittenAfterTheCheckpoint) {
  TempFolder folder;
  const fs::path path = folder / "log.jsonl";
  const std::string before = "{\"step\":1}\n{\"step\":2}\n";
  const std::string after = "{\"step\":2,\"val_loss\":1}\n{\"step\":3}\n";
  const auto truncated = [&](std::optional<int64_t> bytes) {
    write_file_atomically(path, before + after);
    truncate_jsonl_after(path, 2, bytes);
    return read_file(path);
  };
  {
    const JsonlWriter log(path);
    EXPECT_EQ(log.bytes(), 0);
  }
  EXPECT_EQ(truncated(std::ssize(before)), before);
  const std::string by_step = before + "{\"step\":2,\"val_loss\":1}\n";
  // No line ends there: the log was edited, or lost its end.
  for (const std::optional<int64_t> bytes : {std::optional<int64_t>(), {5}, {-1}, {1 << 20}})
    EXPECT_EQ(truncated(bytes), by_step);
  EXPECT_EQ(truncated(0), "");
  {
    JsonlWriter log(path);
    log.write({{"step", 1}});
    EXPECT_EQ(log.bytes(), 11);
  }
}

/// A line of /proc/self/status in bytes.
int64_t status_bytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;)
    if (int64_t kib = 0; word == name + ":" && file >> kib) return kib * 1024;
  return -1;
}

TEST(Jsonl, AHugeLogIsNotHeldInMemory) {
#if defined(BRRR_SANITIZED)
  GTEST_SKIP() << "the sanitizer keeps what was freed";
#endif
  TempFolder folder;
  const fs::path path = folder / "log.jsonl";
  {
    FileWriter log(path);
    const std::string line = json({{"step", 1}, {"text", std::string(20'000, 'x')}}).dump() + "\n";
    for (int i = 0; i < 4000; ++i) log.write(line);
    log.finish();
  }
  const int64_t before = status_bytes("VmRSS");
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak is that of now
  if (before < 0 || status_bytes("VmHWM") > before + (16 << 20))
    GTEST_SKIP() << "this system does not reset the peak";
  size_t records = 0;
  each_jsonl_record(
      path, [&](const json&) { ++records; }, [](const std::string&) {});
  { const JsonlWriter log(path); }
  EXPECT_EQ(records, 4000u);
  EXPECT_LT(status_bytes("VmHWM"), before + (32 << 20)) << "of 80 MB";
}

TEST(Jsonl, ADamagedLineIsNamedAndLeftOut) {
  TempFolder folder;
  const fs::path path = folder / "log.jsonl";
  const auto read = [&](const std::string& text, const std::string& warning) {
    write_file_atomically(path, text);
    ::testing::internal::CaptureStderr();
    const auto records = read_jsonl(path);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find(warning), std::string::npos) << said;
    EXPECT_EQ(std::ranges::count(said, '\n'), warning.empty() ? 0 : 1) << said;
    return records.size();
  };
  EXPECT_EQ(read("{\"step\":1}\n{\"step\":\n{\"step\":3}\n", "log.jsonl: line 2: not valid JSON"),
            2u);
  EXPECT_EQ(read("[1]\n", "log.jsonl: line 1: expected a JSON object, found an array"), 0u);
  EXPECT_EQ(read("{\"step\":\"x\"}\n", "line 1: expected a number"), 0u);
  EXPECT_EQ(read("{\"step\":1}\n", ""), 1u);
  write_file_atomically(path, "{\"step\":1}\n\xff\xfe{\n{\"step\":3}\n{\"step\":9}\n");
  truncate_jsonl_after(path, 3);
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"step\":3}\n");
  EXPECT_USER_ERROR(JsonlWriter(folder / "no/log.jsonl"), "cannot write");
  EXPECT_USER_ERROR(read_jsonl(folder.path()), "cannot read");
}

}  // namespace
}  // namespace brrr::io
