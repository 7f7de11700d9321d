#pragma once
// Runs the program itself, as users run it.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr {

struct Outcome {
  int code = -1;
  std::string out, err;
};

class CommandLine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(BRRR_BINARY)) GTEST_SKIP() << "the program is not built";
  }
  /// `arguments` as a shell sees them; `input` on standard input.
  Outcome run(const std::string& arguments, const std::string& input = "",
              const std::string& prefix = "") {
    write_file_atomically(folder_ / "in", input);
    const std::string at = folder_.path().string();
    const std::string command =
        fmt::format("cd '{0}' && {1} '{2}' {3} <'{0}/in' >'{0}/out' 2>'{0}/err'", at, prefix,
                    BRRR_BINARY, arguments);
    const int status = std::system(command.c_str());
    Outcome outcome;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.out = read_file(folder_ / "out");
    outcome.err = read_file(folder_ / "err");
    return outcome;
  }
  void expect_one_line(const Outcome& o, int code, const std::string& part) {
    EXPECT_EQ(o.code, code) << o.err;
    EXPECT_EQ(o.out, "");
    EXPECT_TRUE(o.err.starts_with("brrr: ")) << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    EXPECT_NE(o.err.find(part), std::string::npos) << "expected: " << part << "\ngot: " << o.err;
  }
  test::TempFolder folder_;
};

}  // namespace brrr
