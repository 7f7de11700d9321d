// Regular expressions against the library `tokenizers` (tests/golden/make_pattern_goldens.py), and
// the constructs that are refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "support/temp_folder.h"
#include "text/patterns/matches.h"

namespace brrr::io {
namespace {

TEST(Patterns, SplitAndReplaceAsTheLibraryDoes) {
  const auto goldens = nlohmann::json::parse(
      read_file(fs::path(BRRR_SOURCE_DIR) / "tests" / "golden" / "patterns.json"));
  ASSERT_GT(goldens["splits"].size(), 150u);
  for (const auto& golden : goldens["splits"]) {
    const auto source = golden["pattern"].get<std::string>();
    SCOPED_TRACE(source);
    std::optional<SplitPattern> pattern;
    ASSERT_NO_THROW(pattern = SplitPattern::regex(source, "p"));
    for (size_t i = 0; i < goldens["texts"].size(); ++i) {
      const auto text = goldens["texts"][i].get<std::string>();
      std::vector<std::string> pieces;
      std::string replaced;
      size_t done = 0;
      for_each_match(*pattern, text, [&](size_t begin, size_t end) {
        if (begin > done) pieces.push_back(text.substr(done, begin - done));
        if (end > begin) pieces.push_back(text.substr(begin, end - begin));
        replaced += text.substr(done, begin - done) + "<>";
        done = end;
      });
      if (done < text.size()) pieces.push_back(text.substr(done));
      EXPECT_EQ(pieces, golden["pieces"][i].get<std::vector<std::string>>()) << text;
      if (text.empty()) continue;  // the library looks for no match in an empty text
      EXPECT_EQ(replaced + text.substr(done), golden["replaced"][i].get<std::string>()) << text;
    }
  }
}

// A class of classes is one character: repeating it is not exponential.
TEST(Patterns, RepeatedUnionsOfClassesAreFast) {
  const SplitPattern pattern = SplitPattern::regex(R"([[:^digit:]\P{Punct}]*!)", "p");
  EXPECT_FALSE(pattern.find(std::string(2000, 'a'), 0));
}

TEST(Patterns, WhatIsRefusedSaysWhy) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(\p{Nosuch})", "the property 'Nosuch'"},
      {R"(\p{In_Greek})", "the property 'In_Greek'"},
      {R"(\p{Xan})", "the property 'Xan'"},
      {R"(\p{L)", "a property without braces behind \\p"},
      {R"([[:nosuch:]])", "the name of a class 'nosuch'"},
      {R"((?i)[\p{Lu}])", "a property of case in a class that ignores case: 'Lu'"},
      {R"((?i)[[:upper:]])", "a property of case in a class that ignores case: 'upper'"},
      {R"((?i)[a&&b])", "an intersection of classes that ignores case"},
      {R"((?i)[a[^b]])", "a class of classes that ignores case"},
      {R"([a-\d])", "a range to"},
      {R"([b-a])", "a range whose end comes before its beginning"},
      {R"([)", "a class without its ]"},
      {R"([])", "a class without its ]"},
      {R"((a)\2)", "a reference to a group that is not there: 2"},
      {R"((?<n>a)\1)", "a reference to a group that is not there: 1"},
      {R"((?<n>a)\k<m>)", "is there twice: 'm'"},
      {R"((?<n>a)(?<n>b)\k<n>)", "is there twice: 'n'"},
      {R"(\k)", "the escape \\k"},
      {R"((?<n)", "a group whose name does not end"},
      {R"((?P<n>a))", "the group (?P<n"},
      {R"((?~a))", "the group (?~a)"},
      {R"((?#a)", "a comment without its )"},
      {R"((?=a)*)", "a repeated look-around"},
      {R"(a***********)", "too many quantifiers"},
      {R"(\y)", "the escape \\y"},
      {R"(\377)", "an octal escape that means no character"},
      {R"(\xff)", "a hexadecimal escape that means no character"},
      {R"(\x{61)", "an escape without its }"},
      {R"(a{5,2})", "the quantifier {5,2}"},
      {R"(*a)", "nothing before the quantifier *"},
      {R"((?<=a*)b)", "cannot be compiled"}};
  for (const auto& [pattern, message] : cases) {
    const std::string error =
        test::user_error_of([&, p = pattern] { SplitPattern::regex(p, "p"); });
    EXPECT_NE(error.find(message), std::string::npos) << pattern << "\n" << error;
  }
  std::string deep;
  for (int i = 0; i < 30; ++i) deep += "[a";
  EXPECT_NE(test::user_error_of([&] { SplitPattern::regex(deep, "p"); }).find("classes nested too"),
            std::string::npos);
}

}  // namespace
}  // namespace brrr::io
