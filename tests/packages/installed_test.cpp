// The Python package, and the examples against what `cmake --install` puts into a prefix that is
// then moved. Skipped where there is no Python, compiler, CMake or pkg-config.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "support/models_folder.h"
#include "support/temp_folder.h"

namespace brrr::test {
namespace {

bool has(const std::string& command) {
  return std::system(fmt::format("command -v {} > /dev/null 2>&1", command).c_str()) == 0;
}

class Installed : public testing::Test {
 protected:
  /// Runs a line of the shell. A failure shows what it said.
  void expect_runs(const std::string& line) {
    const fs::path said = folder_.path() / "said";
    const int code = std::system(fmt::format("{{ {}; }} > '{}' 2>&1", line, said.string()).c_str());
    EXPECT_EQ(code, 0) << line << "\n" << (last_ = read_file(said));
    last_ = read_file(said);
  }
  void install() {
    for (const char* tool : {"cmake", "python3", "gcc", "g++", "pkg-config"})
      if (!has(tool)) GTEST_SKIP() << "there is no " << tool;
    const fs::path first = folder_.path() / "first";
    expect_runs(fmt::format("cmake --install '{}' --prefix '{}'", BRRR_BUILD_DIR, first.string()));
    fs::rename(first, prefix_);
    write_file_atomically(folder_.path() / "text.txt", [] {
      std::string text;
      for (int i = 0; i < 60; ++i) text += "To be, or not to be, that is the question.\n";
      return text;
    }());
  }
  std::string python(const std::string& arguments) const {
    return fmt::format(
        "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH='{}/python' BRRR_LIBRARY='{}' "
        "BRRR_BINARY='{}' BRRR_MODELS='{}' python3 {}",
        BRRR_SOURCE_DIR, library_.string(), BRRR_BINARY, models_folder().string(), arguments);
  }

  TempFolder folder_;
  fs::path prefix_ = folder_.path() / "moved";
  fs::path library_ = prefix_ / "lib/libbrrr.so.0";
  std::string last_;
};

TEST_F(Installed, PythonPackage) {
  if (!has("python3")) GTEST_SKIP() << "there is no python3";
  library_ = BRRR_LIBRARY;
  expect_runs(python(fmt::format("'{}/tests/packages/python_package.py'", BRRR_SOURCE_DIR)));
  EXPECT_NE(last_.find("\nOK"), std::string::npos) << last_;
}

TEST_F(Installed, ExamplesRunAgainstTheMovedPrefix) {
  install();
  if (IsSkipped() || HasFailure()) return;
  const std::string examples = std::string(BRRR_SOURCE_DIR) + "/examples";
  const std::string run = (folder_.path() / "run").string();
  const std::string built = (folder_.path() / "built").string();
  expect_runs(fmt::format("'{}/bin/brrr' --version", prefix_.string()));
  EXPECT_TRUE(last_.starts_with("brrr ")) << last_;
  expect_runs(python(fmt::format("'{}/python/train.py' '{}/text.txt' '{}'", examples,
                                 folder_.path().string(), run)));
  EXPECT_NE(last_.find("validation loss"), std::string::npos) << last_;
  expect_runs(python(fmt::format("'{}/python/own_graph.py'", examples)));
  EXPECT_NE(last_.find("loss on new points: 0.0"), std::string::npos) << last_;
  if (fs::exists(models_folder() / "minilm"))
    expect_runs(python(fmt::format("'{}/python/embed.py' '{}/minilm' '{}/text.txt' question",
                                   examples, models_folder().string(), folder_.path().string())));

  const std::string flags = fmt::format(
      "-Wall -Wextra -Wpedantic -Werror '{}/c_api/main.c' -o '{}' "
      "$(PKG_CONFIG_PATH='{}/lib/pkgconfig' "
      "pkg-config --cflags --libs brrr) -Wl,-rpath,'{}/lib'",
      examples, built, prefix_.string(), prefix_.string());
  std::vector<std::string> compilers = {"gcc -std=c11", "g++ -std=c++17 -fno-exceptions -x c++"};
  if (has("clang++-14")) compilers.push_back("clang++-14 -std=c++17 -fno-exceptions -x c++");
  for (const std::string& compiler : compilers) {
    expect_runs(compiler + " " + flags);
    expect_runs(fmt::format("'{}' '{}' 'To be'", built, run));
    EXPECT_TRUE(last_.starts_with("5 tokens of ")) << last_;
  }
  expect_runs(
      fmt::format("cmake -S '{0}/c_api' -B '{1}/tree' -DCMAKE_PREFIX_PATH='{2}' && "
                  "cmake --build '{1}/tree' && '{1}/tree/c_api' '{3}' 'To be'",
                  examples, folder_.path().string(), prefix_.string(), run));

  const std::string cpp = (folder_.path() / "cpp").string();
  expect_runs(fmt::format(
      "cmake -S '{}/cpp' -B '{}' -DCMAKE_PREFIX_PATH='{}' -DCMAKE_CXX_FLAGS='-Wall -Wextra "
      "-Wpedantic -Werror' && cmake --build '{}' -j 2",
      examples, cpp, prefix_.string(), cpp));
  if (HasFailure()) return;
  expect_runs(fmt::format("cd '{0}' && ./own_graph && ./own_loss && ./own_data", cpp));
  EXPECT_NE(last_.find("y = 3.00 x + -2.00 after 640 steps"), std::string::npos) << last_;
  const std::string text = (folder_.path() / "text.txt").string();
  expect_runs(
      fmt::format("cd '{0}' && ./train_gpt '{1}' 10 && ./finetune train_gpt_model '{1}' "
                  "further 3 && ./generate further 'To be'",
                  cpp, text));
  EXPECT_NE(last_.find("validation loss"), std::string::npos) << last_;
}

}  // namespace
}  // namespace brrr::test
