// Writing files: what is no regular file is written to, never replaced.
#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

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
  std::thread reader([&] { got = read_file(pipe); });
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

TEST(WriteFile, OthersAreReplacedAsAWhole) {
  const test::TempFolder folder;
  write_file_atomically(folder / "a", "one");
  write_file_atomically(folder / "a", "two");
  EXPECT_EQ(read_file(folder / "a"), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace brrr
