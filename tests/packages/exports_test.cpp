// What libbrrr.so exports is a golden list: the functions of include/brrr/brrr_c.h, and brrr_main()
// for the installed program.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <set>

#include "base/env.h"
#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr::test {
namespace {

std::set<std::string> words_of(const std::string& text, const std::regex& pattern) {
  std::set<std::string> words;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at)
    words.insert((*at)[1]);
  return words;
}

TEST(Exports, AreTheGoldenList) {
  if (std::system("nm --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "there is no nm";
  const TempFolder folder;
  const fs::path file = folder.path() / "symbols";
  ASSERT_EQ(
      std::system(
          fmt::format("nm -D --defined-only '{}' > '{}'", BRRR_LIBRARY, file.string()).c_str()),
      0);
  const std::set<std::string> found =
      words_of(read_file(file), std::regex("[0-9a-f]+ [A-Z] ([^\\n]+)"));
  const std::string list = fmt::format("{}\n", fmt::join(found, "\n"));
  const fs::path golden = fs::path(BRRR_SOURCE_DIR) / "tests/golden/exported_symbols.txt";
  if (env::get("BRRR_UPDATE")) write_file_atomically(golden, list);
  EXPECT_EQ(list, read_file(golden)) << "run with BRRR_UPDATE=1 where this is meant";
  std::set<std::string> declared =
      words_of(read_file(fs::path(BRRR_SOURCE_DIR) / "include/brrr/brrr_c.h"),
               std::regex("BRRR_API [a-z0-9_ *]*?\\**(brrr_[a-z0-9_]+)\\("));
  declared.insert("brrr_main");
  EXPECT_EQ(found, declared);
}

}  // namespace
}  // namespace brrr::test
