// Files: what is no regular file is written to, never replaced, and not read.
#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "base/errors.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

TEST(WriteFile, ALinkGoesOnPointing) {
  const test::TempFolder folder;
  write_file_atomically(folder / "target", "old");
  fs::create_symlink("target", folder / "link");
  write_named_file(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "target"), "new");
}

// A folder of somebody else may hold links to files of ours.
TEST(WriteFile, ALinkIsReplacedWhereTheUserDidNotNameIt) {
  const test::TempFolder folder;
  write_file_atomically(folder / "target", "mine");
  const auto link = [&](const fs::path& at) {
    fs::remove(at);
    fs::create_symlink(folder / "target", at);
  };
  const fs::path path = folder / "link";
  for (const auto& write : std::vector<std::function<void()>>{
           [&] { write_file_atomically(path, "new"); }, [&] { write_cache_file(path, "new"); },
           [&] {
             FileWriter out(path);
             out.write("new");
             out.finish();
           }}) {
    link(path);
    link(temporary_beside(path));
    write();
    EXPECT_FALSE(fs::is_symlink(path));
    EXPECT_EQ(read_file(path), "new");
    EXPECT_EQ(read_file(folder / "target"), "mine");
    fs::remove(temporary_beside(path));
  }
  link(path);
  EXPECT_USER_ERROR(open_for_writing(path, WriteMode::append), "it is a link");
  EXPECT_USER_ERROR(open_for_writing(path, WriteMode::update), "it is a link");
  fs::create_directory_symlink(folder.path(), folder / "events");
  EXPECT_USER_ERROR(create_own_folder(folder / "events"), "it is a link");
  EXPECT_EQ(read_file(folder / "target"), "mine");
  // The folder itself may be one.
  write_file_atomically(folder / "events/inside", "text");
  EXPECT_EQ(read_file(folder / "inside"), "text");
}

TEST(WriteFile, APipeInItsPlaceDoesNotBlock) {
  const test::TempFolder folder;
  const fs::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(open_for_writing(pipe, WriteMode::append), UserError);
  write_file_atomically(pipe, "text");
  EXPECT_EQ(read_file(pipe), "text");
}

TEST(Temporaries, OnlyThoseOfDeadProcessesGo) {
  const test::TempFolder folder;
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ::waitpid(dead, nullptr, 0);
  const std::string own = temporary_beside(folder / "a").filename().string();
  const std::string left = fmt::format(".brrr-tmp-{}-log.jsonl", dead);
  const std::set<std::string> stay{own,
                                   ".brrr-tmp-1-a",
                                   ".brrr-tmp-notes",
                                   ".brrr-tmp--3-a",
                                   fmt::format(".brrr-tmp-{}", dead),
                                   fmt::format("log.jsonl.tmp{}", dead)};
  for (const std::string& name : stay) std::ofstream(folder / name) << "text";
  std::ofstream(folder / left) << "text";
  fs::create_directory(folder / fmt::format(".brrr-tmp-{}-folder", dead));
  const fs::path marked = folder / fmt::format(".brrr-tmp-{}-marked", dead);
  fs::create_directory(marked);
  std::ofstream(marked / kTemporaryMark) << "";
  std::ofstream(marked / "m.onnx") << "text";
  remove_dead_temporaries(folder.path());
  EXPECT_FALSE(fs::exists(marked));
  EXPECT_FALSE(fs::exists(folder / left));
  for (const std::string& name : stay) EXPECT_TRUE(fs::exists(folder / name)) << name;
  EXPECT_TRUE(fs::exists(folder / fmt::format(".brrr-tmp-{}-folder", dead)));
  EXPECT_LE(temporary_beside(folder / std::string(255, 'x')).filename().string().size(), 255u);
}

TEST(MarkedFolder, LinksInItAreNotFollowed) {
  const test::TempFolder folder;
  fs::create_directories(folder / "others/inner");
  std::ofstream(folder / "others/inner/file") << "mine";
  fs::create_directories(folder / "ours/deep");
  std::ofstream(folder / "ours/mark") << "";
  fs::create_directory_symlink(folder / "others", folder / "ours/deep/link");
  fs::create_directory_symlink(folder / "others", folder / "link");
  remove_marked_folder(folder / "ours", "mark");
  remove_marked_folder(folder / "link", "mark");
  EXPECT_FALSE(fs::exists(folder / "ours"));
  EXPECT_TRUE(fs::exists(folder / "link/inner/file"));
}

TEST(WriteFile, APipeIsWrittenTo) {
  const test::TempFolder folder;
  const fs::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { std::getline(std::ifstream(pipe), got); });
  write_named_file(pipe, "through");
  reader.join();
  EXPECT_EQ(got, "through");
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST(WriteFile, ADeviceThatIsFullSaysSo) {
  if (!fs::is_character_file("/dev/full")) GTEST_SKIP() << "no /dev/full";
  EXPECT_THROW(write_named_file("/dev/full", "x"), UserError);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST(ReadFile, OnlyRegularFilesAreRead) {
  const test::TempFolder folder;
  const fs::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);  // opening it would wait for a writer
  fs::create_symlink("/dev/zero", folder / "endless");
  EXPECT_USER_ERROR(read_file(pipe), "it is a pipe; expected a regular file");
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
