#include "formats/json_file.h"

#include "support/temp_folder.h"

namespace brrr::io {
namespace {

TEST(JsonFile, ParsesAndKeepsNumbers) {
  const Json value = parse_json(R"({"a": [1, -2, 3.5], "b": {"a": null}})", "x.json");
  EXPECT_EQ(value["a"][1], -2);
  EXPECT_TRUE(value["b"]["a"].is_null());
}

TEST(JsonFile, BrokenTextNamesThePlace) {
  EXPECT_USER_ERROR(parse_json("{\n \"a\": 1,\n \"b\" 2}", "x.json"),
                    "x.json: not valid JSON at line 3, column 6");
  EXPECT_USER_ERROR(parse_json("", "x.json"), "the file is empty");
  EXPECT_USER_ERROR(parse_json("{\"a\": [1, 2", "x.json"), "the text ends too early");
  EXPECT_USER_ERROR(parse_json("{} {}", "x.json"), "line 1, column 4");
  EXPECT_USER_ERROR(parse_json("{\"a\": \"\xff\"}", "x.json"), "not UTF-8");
  EXPECT_USER_ERROR(parse_json("{\"a\": 1e999}", "x.json"),
                    "x.json: 'a': the number '1e999' is too large");
  EXPECT_USER_ERROR(parse_json("[-1e999]", "x.json"), "x.json: the number '-1e999' is too large");
}

TEST(JsonFile, DuplicateKeysAreRefusedPerObject) {
  EXPECT_USER_ERROR(parse_json(R"({"a": 1, "b": {"c": 1, "c": 2}})", "x.json"),
                    "'c' appears twice");
  EXPECT_USER_ERROR(parse_json(R"({"a": 1, "\u0061": 2})", "x.json"), "'a' appears twice");
  EXPECT_NO_THROW(parse_json(R"({"a": {"c": 1}, "b": [{"c": 1}, {"c": 2}], "c": 1})", "x.json"));
}

TEST(JsonFile, NestingHasALimit) {
  const auto nested = [](int levels) {
    return std::string(static_cast<size_t>(levels), '[') +
           std::string(static_cast<size_t>(levels), ']');
  };
  EXPECT_NO_THROW(parse_json(nested(kDeepestJson), "x.json"));
  EXPECT_USER_ERROR(parse_json(nested(kDeepestJson + 1), "x.json"),
                    "x.json: JSON is nested more than 256 levels deep");
  EXPECT_USER_ERROR(parse_json(nested(1'000'000), "x.json"), "nested more than");
  EXPECT_USER_ERROR(parse_json(std::string(1'000'000, '['), "x.json"), "nested more than");
}

TEST(JsonFile, QuotingMakesTextPrintable) {
  EXPECT_EQ(in_quotes("a\x1b[31m\n"), "'a\\x1b[31m\\x0a'");
  EXPECT_EQ(in_quotes(std::string(200, 'x')).size(), 105u);
  EXPECT_EQ(describe(parse_json("\"x\"", "t")), "the string 'x'");
  EXPECT_EQ(describe(parse_json("-3", "t")), "the number -3");
  EXPECT_EQ(describe(parse_json("null", "t")), "null");
}

TEST(JsonFile, ManyObjectsInAListTakeLinearTime) {
  // The library's parser with a callback takes minutes for this.
  std::string text = "[{}";
  for (int i = 1; i < 200'000; ++i) text += ",{\"a\":[" + std::to_string(i) + "]}";
  const Json value = parse_json(text + "]", "x.json");
  ASSERT_EQ(value.size(), 200'000u);
  EXPECT_EQ(value[199'999]["a"][0], 199'999);
}

}  // namespace
}  // namespace brrr::io
