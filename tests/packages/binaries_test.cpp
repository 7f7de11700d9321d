// What the shipped binaries need of a system, and what they say of the one where they were built.
#include <gnu/libc-version.h>

#include <map>
#include <regex>
#include <set>

#include "packages/installed_prefix.h"

namespace brrr::test {
namespace {

/// The numbers of a version: "3.4.30" -> {3, 4, 30}.
std::vector<int> numbers_of(const std::string& version) {
  std::vector<int> numbers;
  const std::regex number("[0-9]+");
  for (std::sregex_iterator at(version.begin(), version.end(), number), end; at != end; ++at)
    numbers.push_back(std::stoi(at->str()));
  return numbers;
}

// Ubuntu 22.04 has glibc 2.35 and the libraries of GCC 12; Debian 12 has newer ones.
TEST_F(InstalledPrefix, BinariesRunOnUbuntu2204) {
  for (const char* tool : {"objdump", "ldd", "strip"})
    if (!has_command(tool)) GTEST_SKIP() << "there is no " << tool;
  if (numbers_of(gnu_get_libc_version()) > std::vector<int>{2, 36})
    GTEST_SKIP() << "packages are made with the glibc of Debian 12, 2.36, or an older one";
  const fs::path bundled = folder_.path() / "bundled";
  expect_runs(fmt::format("'{}/scripts/packaging/bundled.sh' '{}' '{}'", BRRR_SOURCE_DIR,
                          BRRR_LIBRARY, bundled.string()));
  std::vector<fs::path> files = {BRRR_LIBRARY, fs::path(BRRR_BUILD_DIR) / "installed/brrr"};
  for (const fs::directory_entry& entry : fs::directory_iterator(bundled))
    files.push_back(entry.path());
  EXPECT_GT(files.size(), 5u);  // libgomp and libdnnl at least
  const std::map<std::string, std::vector<int>> newest = {
      {"GLIBC", {2, 35}}, {"GLIBCXX", {3, 4, 30}}, {"CXXABI", {1, 3, 13}}, {"GCC", {12, 0, 0}}};
  std::set<std::string> families;
  const std::regex version("\\((GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)\\) +([^\\n]+)");
  for (const fs::path& file : files) {
    expect_runs(fmt::format("objdump -T '{}' | grep -F '*UND*'", file.string()));
    for (std::sregex_iterator at(said_.begin(), said_.end(), version), end; at != end; ++at) {
      const std::string family = (*at)[1];
      families.insert(family);
      EXPECT_LE(numbers_of((*at)[2]), newest.at(family)) << file << " needs " << (*at)[0];
    }
  }
  EXPECT_TRUE(families.contains("GLIBC") && families.contains("GLIBCXX"));
}

TEST_F(InstalledPrefix, BinariesDoNotNameTheFolderOfTheBuild) {
  install();
  if (IsSkipped() || HasFailure()) return;
  for (const fs::path& file : {prefix_ / "lib/libbrrr.so.0", prefix_ / "bin/brrr"}) {
    const std::string bytes = read_file(file);
    for (const std::string folder : {BRRR_SOURCE_DIR "/", BRRR_BUILD_DIR "/"}) {
      const size_t at = bytes.find(folder);
      EXPECT_EQ(at, std::string::npos) << file << " has " << bytes.c_str() + at;
    }
  }
}

}  // namespace
}  // namespace brrr::test
