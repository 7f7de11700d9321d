// What passes, backends and reports ask of an op stands in its OpDef or is its identity (ops/op.h),
// and what they ask of an input is its role: the sources are searched for comparisons of names.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "base/file.h"

namespace brrr {
namespace {

/// The files that may keep the name of an op in a variable, and why.
const std::map<std::string, const char*> kNamesInVariables = {
    {"backend/cuda/cross_entropy.cpp", "the entry of a kernel has the name of its op"},
    {"passes/fusion/fuse.cpp", "the key under which an answer of the target is kept"}};

/// Whether a line compares the name of an op, or gives it a name of its own to be compared by.
bool compares_an_op(const std::string& line) {
  static const std::regex kPatterns[] = {
      std::regex(R"x(\bop(->|\.)name\s*(==|!=|\.(starts_with|ends_with|find|rfind|contains)))x"),
      std::regex(R"x((==|!=)\s*[\w.>()*-]*\bop(->|\.)name\b)x"),
      std::regex(R"x((std::string(_view)?|auto)&?\s+\w+\s*=[^;]*\bop(->|\.)name;)x"),
      std::regex(R"x((\.|->)op\s*(==|!=)\s*")x")};
  const auto has = [&](const char* text) { return line.find(text) != std::string::npos; };
  if (!has("op->name") && !has("op.name") && !has("op ==") && !has("op !=")) return false;
  return std::any_of(std::begin(kPatterns), std::end(kPatterns),
                     [&](const std::regex& pattern) { return std::regex_search(line, pattern); });
}

/// Whether a line reads the role of an input or an output off its name.
bool parses_a_name(const std::string& line) {
  static const std::regex kPattern(
      R"x((starts_with|ends_with|find)\(("(grad|grad_sum|copy|panels|scaler|cache|adam_)))x");
  return line.find("with(") != std::string::npos && std::regex_search(line, kPattern);
}

template <typename Visit>
void each_source_line(Visit&& visit) {
  const fs::path source = fs::path(BRRR_SOURCE_DIR) / "src";
  for (const auto& entry : fs::recursive_directory_iterator(source)) {
    const std::string extension = entry.path().extension();
    if (!entry.is_regular_file() || (extension != ".h" && extension != ".cpp")) continue;
    const std::string name = fs::relative(entry.path(), source).string(),
                      text = read_file(entry.path());
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      visit(name, text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
}

TEST(Names, ASearchFindsWhatItIsFor) {
  for (const char* line :
       {"if (node.op->name == \"matmul\") {", "return op.name != \"cast\";",
        "op->name.starts_with(\"linear_cross_entropy\")", "const std::string& op = node.op->name;",
        "if (\"where\" == node.op->name) return;", "e.op == \"linear\" && x"})
    EXPECT_TRUE(compares_an_op(line)) << line;
  for (const char* line : {"++count[node.op->name];", "call(node.op->name, operands, attrs)",
                           "if (o.optim == \"adamw\")", "if (node.op->product) return;",
                           "text += node.op->name + attrs;"})
    EXPECT_FALSE(compares_an_op(line)) << line;
  EXPECT_TRUE(parses_a_name("if (s.name.starts_with(\"grad_sum:\"))"));
  EXPECT_FALSE(parses_a_name("g.input(\"grad_sum:\" + name)"));
}

TEST(Names, OpsAreComparedByIdentity) {
  size_t lines = 0, kept = 0;
  each_source_line([&](const std::string& file, const std::string& line) {
    ++lines;
    if (!compares_an_op(line)) return;
    EXPECT_TRUE(kNamesInVariables.contains(file)) << file << ": " << line;
    ++kept;
  });
  EXPECT_GT(lines, 100000u);
  EXPECT_EQ(kept, kNamesInVariables.size()) << "a file of the list has no such line any more";
}

TEST(Names, InputsAreAskedForTheirRoles) {
  each_source_line([](const std::string& file, const std::string& line) {
    EXPECT_FALSE(parses_a_name(line)) << file << ": " << line;
  });
}

}  // namespace
}  // namespace brrr
