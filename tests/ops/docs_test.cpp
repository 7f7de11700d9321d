// docs/ops.md is generated from the op table. This test fails when it is stale and writes it again
// when BRRR_UPDATE is set: BRRR_UPDATE=1 test_ops --gtest_filter=Docs.*

#include <gtest/gtest.h>

#include <cctype>
#include <map>

#include "base/env.h"
#include "base/file.h"
#include "ops/ops.h"

namespace brrr {
namespace {

const char* derivative(const OpDef& op) {
  if (op.vjp) return op.is_composite() ? "own, checked against the decomposition" : "own";
  if (op.is_composite()) return op.no_gradient.empty() ? "of its decomposition" : nullptr;
  return nullptr;
}

std::string in_place(const OpDef& op) {
  if (op.id == Op::fused) return "what its body may overwrite";
  if (op.runs_regions) return "every carried value over itself";
  if (op.in_place_of) return "every parameter and moment over itself";
  std::string out;
  for (const OpDef::InPlace& p : op.in_place)
    out += fmt::format("{}result {} over operand {}", out.empty() ? "" : ", ", p.result, p.operand);
  return out;
}

std::string ops_page() {
  std::string out =
      "# The ops\n\nGenerated from the op table (`src/ops/`) by `tests/ops/docs_test.cpp`; do not "
      "edit.\n\n"
      "A **primitive** is defined by fp64 loops in its own record, a **composite** by its "
      "decomposition into "
      "other ops.\nAutocast says what mixed precision does with an op: `low` runs it in the low "
      "format, `fp32` "
      "in fp32, `follow` in what\nits operands have. Attributes stand in braces. In place: which "
      "result may "
      "share memory with which operand, counted\nfrom 0.\n\n";
  std::map<OpClass, std::vector<const OpDef*>> by_class;
  for (const OpDef* op : all_ops()) by_class[op->op_class].push_back(op);
  out += "| class | ops |\n|---|---|\n";
  for (const auto& [op_class, list] : by_class) {
    std::string names;
    for (const OpDef* op : list)
      names += fmt::format("{}[{}](#{})", names.empty() ? "" : ", ", op->name, op->name);
    out += fmt::format("| {} | {} |\n", name_of(op_class), names);
  }
  for (const auto& [op_class, list] : by_class) {
    std::string title(name_of(op_class));
    title[0] = static_cast<char>(std::toupper(title[0]));
    out += fmt::format("\n## {}\n", title);
    for (const OpDef* op : list) {
      const char* autocast = op->autocast == Autocast::low    ? "low"
                             : op->autocast == Autocast::fp32 ? "fp32"
                                                              : "follow";
      out += fmt::format("\n### {}\n\n{}.\n\n", op->name, op->doc);
      out += fmt::format("- {}; autocast `{}`\n", op->is_primitive() ? "Primitive" : "Composite",
                         autocast);
      if (const char* how = derivative(*op))
        out += fmt::format("- Derivative: {}\n", how);
      else
        out += fmt::format("- No derivative: {}\n", op->no_gradient);
      if (const std::string pairs = in_place(*op); !pairs.empty())
        out += fmt::format("- In place: {}\n", pairs);
      if (op->view)
        out += "- A view where the result is a contiguous part of operand 0: no copy, no kernel\n";
    }
  }
  return out;
}

TEST(Docs, OpsPageIsTheOpTable) {
  const fs::path path = fs::path(BRRR_SOURCE_DIR) / "docs/ops.md";
  const std::string page = ops_page();
  if (env::get("BRRR_UPDATE")) write_file_atomically(path, page);
  ASSERT_TRUE(fs::exists(path)) << "run with BRRR_UPDATE=1";
  EXPECT_TRUE(read_file(path) == page) << "docs/ops.md is stale: run with BRRR_UPDATE=1 "
                                       << "--gtest_filter=Docs.*";
}

}  // namespace
}  // namespace brrr
