// docs/options.md is generated from the option tables. This test fails when it is stale and writes
// it again when BRRR_UPDATE is set: BRRR_UPDATE=1 test_cli --gtest_filter=Docs.*

#include <gtest/gtest.h>

#include <cstdio>

#include "base/env.h"
#include "base/file.h"

namespace brrr {
namespace {

std::string output_of(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string text;
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  ::pclose(pipe);
  return text;
}

TEST(Docs, OptionsPageIsTheOptionTables) {
  if (!fs::exists(BRRR_BINARY)) GTEST_SKIP() << "the program is not built";
  const fs::path path = fs::path(BRRR_SOURCE_DIR) / "docs/options.md";
  const std::string page = output_of(std::string("'") + BRRR_BINARY + "' help --markdown");
  ASSERT_NE(page.find("## brrr train\n"), std::string::npos);
  ASSERT_NE(page.find("| `--precision NAME` | `fp32` |"), std::string::npos) << page;
  if (env::get("BRRR_UPDATE")) write_file_atomically(path, page);
  ASSERT_TRUE(fs::exists(path)) << "run with BRRR_UPDATE=1";
  EXPECT_TRUE(read_file(path) == page) << "docs/options.md is stale: run with BRRR_UPDATE=1 "
                                       << "--gtest_filter=Docs.*";
}

}  // namespace
}  // namespace brrr
