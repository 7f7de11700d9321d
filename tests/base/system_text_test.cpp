#include "base/system_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr::system_text {
namespace {

TEST(ReadOrEmpty, ReturnsTheWholeFile) {
  const test::TempFolder folder;
  const fs::path file = folder.path() / "file";
  for (const size_t size : {0, 1, 4095, 4096, 4097, 20000}) {
    std::string text(size, 'x');
    for (size_t i = 0; i < size; i += 97) text[i] = '\0';
    write_file_atomically(file, text);
    EXPECT_EQ(read_or_empty(file), text) << size << " bytes";
  }
  EXPECT_NE(read_or_empty("/proc/self/stat"), "");
}

// A process that ends between open() and read() cannot be arranged reliably. A folder and
// /proc/self/mem open, too, and fail on read().
TEST(ReadOrEmpty, IsEmptyWhereReadingFails) {
  const test::TempFolder folder;
  EXPECT_EQ(read_or_empty(folder.path() / "absent"), "");
  EXPECT_EQ(read_or_empty(folder.path()), "");     // EISDIR
  EXPECT_EQ(read_or_empty("/proc/self/mem"), "");  // EIO: nothing is mapped at address 0
}

TEST(SystemText, NumberAndLines) {
  EXPECT_EQ(number(" 42 kB\n"), 42);
  EXPECT_EQ(number("-7"), -7);
  EXPECT_EQ(number("max"), std::nullopt);
  EXPECT_EQ(number(""), std::nullopt);
  std::vector<std::string> lines;
  each_line("a\n\nlast", [&](std::string_view line) { lines.emplace_back(line); });
  EXPECT_EQ(lines, (std::vector<std::string>{"a", "", "last"}));
}

}  // namespace
}  // namespace brrr::system_text
