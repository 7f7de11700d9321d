#pragma once
// A prefix that `cmake --install` filled and that was then moved, and lines of the shell that use
// it.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/file.h"
#include "support/models_folder.h"
#include "support/temp_folder.h"

namespace brrr::test {

inline bool has_command(const std::string& command) {
  return std::system(fmt::format("command -v {} > /dev/null 2>&1", command).c_str()) == 0;
}

class InstalledPrefix : public testing::Test {
 protected:
  /// Runs a line of the shell and keeps what it says in said_. A failure shows it.
  void expect_runs(const std::string& line) {
    const int code = run(line);
    EXPECT_EQ(code, 0) << line << "\n" << said_;
  }
  /// The status of std::system().
  int run(const std::string& line) {
    const fs::path said = folder_.path() / "said";
    const int code = std::system(fmt::format("{{ {}; }} > '{}' 2>&1", line, said.string()).c_str());
    said_ = read_file(said);
    return code;
  }
  /// Skips the test where a tool is absent.
  void install() {
    for (const char* tool : {"cmake", "python3", "gcc", "g++", "pkg-config"})
      if (!has_command(tool)) GTEST_SKIP() << "there is no " << tool;
    const fs::path first = folder_.path() / "first";
    expect_runs(fmt::format("cmake --install '{}' --prefix '{}'", BRRR_BUILD_DIR, first.string()));
    fs::rename(first, prefix_);
    write_file_atomically(text_, [] {
      std::string text;
      for (int i = 0; i < 60; ++i)
        text += "In the beginning: To be, or not to be, that is the question.\n";
      return text;
    }());
  }
  std::string python(const std::string& arguments) const {
    return fmt::format(
        "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH='{}/python' BRRR_LIBRARY='{}' "
        "BRRR_BINARY='{}' BRRR_MODELS='{}' python3 {}",
        BRRR_SOURCE_DIR, library_.string(), BRRR_BINARY, models_folder().string(), arguments);
  }
  /// Builds a CMake project that asks for the installed package, in a folder below folder_.
  fs::path built(const fs::path& sources, const std::string& name, const std::string& options) {
    const fs::path to = folder_.path() / name;
    expect_runs(
        fmt::format("cmake -S '{0}' -B '{1}' -DCMAKE_PREFIX_PATH='{2}' {3} && "
                    "cmake --build '{1}' -j 2",
                    sources.string(), to.string(), prefix_.string(), options));
    return to;
  }

  TempFolder folder_;
  fs::path prefix_ = folder_.path() / "moved";
  fs::path library_ = prefix_ / "lib/libbrrr.so.0";
  fs::path text_ = folder_.path() / "text.txt";
  fs::path examples_ = fs::path(BRRR_SOURCE_DIR) / "examples";
  std::string said_;
};

}  // namespace brrr::test
