// docs/ops.md is generated from the op table. This test fails when it is stale and writes it again
// when BRRR_UPDATE is set: BRRR_UPDATE=1 test_ops --gtest_filter=Docs.*

#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <set>

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

/// The text as comment lines of at most 100 characters.
std::string comment_of(const std::string& text) {
  constexpr size_t kWidth = 100;
  std::string out, line = "///";
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (line.size() + 1 + word.size() > kWidth) {
      out += line + "\n";
      line = "///";
    }
    line += " " + word;
    at = end + 1;
  }
  return out + line + "\n";
}

/// include/brrr/ops.h: a function for each op.
std::string ops_header() {
  std::string out =
      "#pragma once\n// clang-format off\n"
      "// Every op as a function. Generated from the op table by tests/ops/docs_test.cpp; do not\n"
      "// edit. Ops with attributes take them as text, \"{axis=1, eps=1e-05}\", as docs/ops.md "
      "names\n"
      "// them; graph.h has friendlier functions for what models are usually written with.\n\n"
      "#include <initializer_list>\n#include <string>\n#include <vector>\n\n"
      "#include \"brrr/graph.h\"\n\nnamespace brrr::inline v1::ops {\n";
  const std::set<std::string> unary{
#define BRRR_NAMES(name) #name,
      BRRR_UNARY_OPS(BRRR_NAMES)};
  const std::set<std::string> binary{BRRR_BINARY_OPS(BRRR_NAMES)};
#undef BRRR_NAMES
  for (const OpDef* op : all_ops()) {
    const std::string name = op->name == "if" ? "if_" : std::string(op->name);
    out += "\n" + comment_of(op->doc + ".");
    if (unary.contains(op->name))
      out += fmt::format("inline Value {}(const Value& x) {{ return call(\"{}\", {{x}})[0]; }}\n",
                         name, op->name);
    else if (binary.contains(op->name))
      out += fmt::format(
          "inline Value {}(const Value& a, const Value& b) {{\n  return call(\"{}\", {{a, "
          "b}})[0];\n}}\n",
          name, op->name);
    else if (op->op_class == OpClass::leaf)
      out += fmt::format(
          "inline std::vector<Value> {}(Graph& graph, const std::string& attributes) {{\n  return "
          "call(graph.handle(), \"{}\", {{}}, attributes);\n}}\n",
          name, op->name);
    else
      out += fmt::format(
          "inline std::vector<Value> {}(std::initializer_list<Value> operands,\n"
          "                                const std::string& attributes = \"\") {{\n  return "
          "call(\"{}\", operands, attributes);\n}}\n",
          name, op->name);
  }
  return out + "\n}  // namespace brrr::inline v1::ops\n";
}

TEST(Docs, OpsHeaderIsTheOpTable) {
  const fs::path path = fs::path(BRRR_SOURCE_DIR) / "include/brrr/ops.h";
  const std::string page = ops_header();
  if (env::get("BRRR_UPDATE")) write_file_atomically(path, page);
  ASSERT_TRUE(fs::exists(path)) << "run with BRRR_UPDATE=1";
  EXPECT_EQ(read_file(path), page) << "stale: BRRR_UPDATE=1 test_ops --gtest_filter=Docs.*";
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
