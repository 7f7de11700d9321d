// Files: what is no regular file is written to, never replaced, and not read.
#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "base/errors.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

TEST(WriteFile, ALinkGoesOnPointing) {
  const test::TempFolder folder;
  write_file_atomically(folder / "target", "old");
  fs::create_symlink("target", folder / "link");
  write_file_atomically(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "target"), "new");
}

TEST(WriteFile, APipeIsWrittenTo) {
  const test::TempFolder folder;
  const fs::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { std::getline(std::ifstream(pipe), got); });
  write_file_atomically(pipe, "through");
  reader.join();
  EXPECT_EQ(got, "through");
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST(WriteFile, ADeviceThatIsFullSaysSo) {
  if (!fs::is_character_file("/dev/full")) GTEST_SKIP() << "no /dev/full";
  EXPECT_THROW(write_file_atomically("/dev/full", "x"), UserError);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST(ReadFile, OnlyRegularFilesAreRead) {
  const test::TempFolder folder;
  const fs::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);  // opening it would wait for a writer
  fs::create_symlink("/dev/zero", folder / "endless");
  EXPECT_USER_ERROR(read_file(pipe), "it is a pipe, a regular file was expected");
  EXPECT_USER_ERROR(MappedFile{pipe}, "it is a pipe");
  EXPECT_USER_ERROR(sum_of_file(pipe), "it is a pipe");
  EXPECT_USER_ERROR(read_file(folder / "endless"), "it is a device");
  EXPECT_USER_ERROR(read_file(folder.path()), "it is a folder");
  write_file_atomically(folder / "a", "text");
  fs::create_symlink("a", folder / "link");
  EXPECT_EQ(read_file(folder / "link"), "text");
}

TEST(ReadFile, ALimitHolds) {
  const test::TempFolder folder;
  write_file_atomically(folder / "a", "12345");
  EXPECT_EQ(read_file(folder / "a", 5), "12345");
  EXPECT_USER_ERROR(read_file(folder / "a", 4), "it is larger than 4 bytes");
  EXPECT_GT(read_file("/proc/self/status", 1 << 20).size(), 0u) << "its size reads 0";
  EXPECT_USER_ERROR(read_file("/proc/self/status", 3), "larger than 3 bytes");
}

TEST(WriteFile, OthersAreReplacedAsAWhole) {
  const test::TempFolder folder;
  write_file_atomically(folder / "a", "one");
  write_file_atomically(folder / "a", "two");
  EXPECT_EQ(read_file(folder / "a"), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace brrr
