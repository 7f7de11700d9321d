// docs/passes.md is generated from the pass table. This test fails when it is stale and writes it
// again when BRRR_UPDATE is set: BRRR_UPDATE=1 test_passes --gtest_filter=Docs.*

#include <gtest/gtest.h>

#include <map>

#include "base/env.h"
#include "base/file.h"
#include "passes/pass_table.h"

namespace brrr {
namespace {

std::string facts_text(const std::vector<Fact>& facts) {
  std::string text;
  for (const Fact fact : facts)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", name_of(fact));
  return text.empty() ? "-" : text;
}

std::string passes_page() {
  std::string page =
      "# The passes\n\nGenerated from the pass table (`src/passes/pass_table.cpp`) by "
      "`tests/passes/docs_test.cpp`; do not edit.\n\n"
      "They run in this order. *Needs* must hold before a pass runs, *before* must not hold yet, "
      "and *gives* holds once\nit has run: a table in another order than these allow is refused. "
      "`--disable-pass NAME` leaves an optional pass\nout, `--no-compile` all of them, "
      "`BRRR_DISABLE_PASS=NAME` works for any verb, and `--dump-graph FOLDER` writes the\ngraph "
      "after each pass. A pass that enters *regions* runs on the graphs that `if` and `loop` "
      "carry, "
      "too. When a program is compiled, `save_old_states` and the memory plan come "
      "last.\n\n"
      "| | pass | optional | regions | runs when | needs | before | gives "
      "|\n|---|---|---|---|---|---|---|---|\n";
  int number = 0;
  for (const Pass& pass : pass_table())
    page += fmt::format(
        "| {} | [{}](#{}) | {} | {} | {} | {} | {} | {} |\n", ++number, pass.name, pass.name,
        pass.optional ? "yes" : "no", pass.enters_regions ? "enters" : "-", pass.when,
        facts_text(pass.order.needs), facts_text(pass.order.before), facts_text(pass.order.gives));
  std::map<std::string, int> seen;
  for (const Pass& pass : pass_table())
    if (seen[pass.name]++ == 0)
      page += fmt::format("\n## {}\n\n{} (`src/{}`)\n", pass.name, pass.doc, pass.file);
  return page;
}

TEST(Docs, PassesPageIsThePassTable) {
  const fs::path path = fs::path(BRRR_SOURCE_DIR) / "docs/passes.md";
  const std::string page = passes_page();
  if (env::get("BRRR_UPDATE")) write_file_atomically(path, page);
  ASSERT_TRUE(fs::exists(path)) << "run with BRRR_UPDATE=1";
  EXPECT_TRUE(read_file(path) == page) << "docs/passes.md is stale: run with BRRR_UPDATE=1 "
                                       << "--gtest_filter=Docs.*";
}

TEST(Docs, EveryPassSaysWhatItIs) {
  for (const Pass& pass : pass_table()) {
    EXPECT_TRUE(fs::exists(fs::path(BRRR_SOURCE_DIR) / "src" / pass.file)) << pass.name;
    EXPECT_TRUE(pass.doc.ends_with('.')) << pass.name;
    EXPECT_FALSE(pass.when.empty()) << pass.name;
  }
}

}  // namespace
}  // namespace brrr
