// The tests of scripts/gpu_check, which are written in its language; skipped without Python.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

int status_of(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class GpuCheck : public testing::TestWithParam<const char*> {};

TEST_P(GpuCheck, HoldsItsPromises) {
  if (status_of("python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null") != 0)
    GTEST_SKIP() << "no python3, or one older than 3.8";
  const test::TempFolder folder;
  const std::string log = (folder / "log").string();
  const std::string command =
      fmt::format("python3 '{}/tests/cli/gpu_check.py' {}", BRRR_SOURCE_DIR, GetParam());
  EXPECT_EQ(status_of(command + " >'" + log + "' 2>&1"), 0)
      << read_file(log) << "\nrepeat: " << command;
}

INSTANTIATE_TEST_SUITE_P(Classes, GpuCheck,
                         testing::Values("Commands", "Killed", "Figures", "Steps", "Ops", "Bare"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace brrr
