// Option tables: values, distances, suggestions, command lines, help.
#include "base/options.h"

#include <gtest/gtest.h>

namespace brrr {
namespace {

struct Fields {
  int64_t count = 3;
  double rate = 0.5;
  bool fast = true;
  std::string name = "x";
  std::string resume = "false";
  std::vector<std::string> files, stops;
};

OptionTable<Fields> make_table() {
  OptionTable<Fields> t;
  t.group("one");
  t.integer("count", &Fields::count, 0, 10, "N", "how many", {"n-items"});
  t.real("rate", &Fields::rate, {.low = 0}, "X", "how fast");
  t.flag("fast", &Fields::fast, "be fast", {"no-slow"});
  t.group("two");
  t.text("name", &Fields::name, "NAME", "a|b");
  t.text("resume", &Fields::resume, "DIR", "go on").kind = OptionKind::kOptional;
  t.list("files", &Fields::files, true, "FILE...", "inputs");
  t.repeated("stop", &Fields::stops, false, "TEXT", "ends");
  return t;
}

Arguments parse(std::vector<std::string> args) {
  static const std::vector<OptionInfo> infos = make_table().infos();
  return parse_arguments(infos, args, "brrr verb");
}

std::string usage_message(std::vector<std::string> args) {
  try {
    parse(std::move(args));
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), ExitCode::kUsage);
    return e.what();
  }
  return "(no error)";
}

TEST(Options, CommandLineForms) {
  const KeyValues expected = {{"n-items", "5"}, {"fast", "False"}, {"no-slow", "False"},
                              {"files", "a"},   {"files", "-b"},   {"files", "c,d"},
                              {"name", "-5"},   {"rate", "-.5"},   {"resume", "run"}};
  const Arguments got =
      parse({"--n_items=5", "--fast", "False", "--no-slow", "False", "--files", "a", "-b", "c,d",
             "--name", "-5", "--rate", "-.5", "--resume", "run"});
  EXPECT_EQ(got.given, expected);
  const auto one = [](std::vector<std::string> args) { return parse(std::move(args)).given; };
  EXPECT_EQ(one({"--fast", "--count", "4"}), (KeyValues{{"fast", "true"}, {"count", "4"}}));
  EXPECT_EQ(one({"--no-fast"}), (KeyValues{{"fast", "false"}}));
  EXPECT_EQ(one({"--no-slow"}), (KeyValues{{"no-slow", "true"}}));
  EXPECT_EQ(one({"--resume", "--count", "4"}), (KeyValues{{"resume", "true"}, {"count", "4"}}));
  EXPECT_EQ(one({"--no-resume"}), (KeyValues{{"resume", "false"}}));
  EXPECT_EQ(one({"--name=a=b"}), (KeyValues{{"name", "a=b"}}));
  EXPECT_EQ(one({"--name", ""}), (KeyValues{{"name", ""}}));
  EXPECT_EQ(one({"--name", "-- two words"}), (KeyValues{{"name", "-- two words"}}));
  EXPECT_TRUE(got.positional.empty());
  EXPECT_FALSE(got.help);

  const Arguments rest = parse({"first", "--fast", "second", "--", "--count", "-h"});
  EXPECT_EQ(rest.positional, (std::vector<std::string>{"first", "second", "--count", "-h"}));
  EXPECT_EQ(rest.given, (KeyValues{{"fast", "true"}}));
  EXPECT_TRUE(parse({"--count", "3", "-h"}).help);
}

// A list that repeats leaves the words behind its value alone.
TEST(Options, RepeatedListsTakeOneWordEach) {
  const Arguments got = parse({"--stop", "-a", "file", "--stop=b c", "--stop", "d,e", "more"});
  EXPECT_EQ(got.given, (KeyValues{{"stop", "-a"}, {"stop", "b c"}, {"stop", "d,e"}}));
  EXPECT_EQ(got.positional, (std::vector<std::string>{"file", "more"}));
  Fields fields;
  const OptionTable<Fields> table = make_table();
  for (const auto& [key, value] : got.given) table.set(fields, table.find(key), value, key);
  EXPECT_EQ(fields.stops, (std::vector<std::string>{"-a", "b c", "d,e"}));
  EXPECT_NE(usage_message({"--stop"}).find("--stop needs a value (TEXT)"), std::string::npos);
  EXPECT_NE(usage_message({"--stop", "--fast"}).find("needs a value"), std::string::npos);
}

TEST(Options, CommandLineErrors) {
  EXPECT_NE(usage_message({"--cuont", "3"}).find("did you mean '--count'"), std::string::npos);
  EXPECT_NE(usage_message({"--count"}).find("--count needs a value (N)"), std::string::npos);
  EXPECT_NE(usage_message({"--count", "--fast"}).find("needs a value"), std::string::npos);
  EXPECT_NE(usage_message({"--files"}).find("--files needs a value (FILE...)"), std::string::npos);
  EXPECT_NE(usage_message({"--no-fast=1"}).find("takes no value"), std::string::npos);
  EXPECT_NE(usage_message({"-x"}).find("unknown option '-x'"), std::string::npos);
  EXPECT_NE(usage_message({"--no-count"}).find("unknown option '--no-count'"), std::string::npos);
}

TEST(Options, OneOptionWithTwoValuesIsRefused) {
  for (const auto& [args, message] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"--count", "3", "--count=4"}, "--count 3 and --count 4 contradict each other; keep"},
           {{"--count", "3", "--n-items", "4"}, "--count 3 and --n-items 4 contradict"},
           {{"--fast", "--no-fast"}, "--fast and --no-fast contradict"},
           {{"--resume", "--resume", "run"}, "--resume true and --resume run contradict"}})
    EXPECT_NE(usage_message(args).find(message), std::string::npos) << usage_message(args);
  EXPECT_EQ(usage_message({"--count", "3", "--n-items=3", "--fast", "--fast"}), "(no error)");
  EXPECT_EQ(usage_message({"--files", "a", "--files", "b"}), "(no error)");
}

TEST(Options, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("abc", "abc"), 0);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("setps", "steps"), 1);  // neighbours swapped
}

TEST(Options, NearestIsNearOrNothing) {
  const std::vector<std::string> words = {"train", "generate", "eval", "n-layer"};
  EXPECT_EQ(nearest("trian", words), "train");
  EXPECT_EQ(nearest("evla", words), "eval");
  EXPECT_EQ(nearest("layer", words), "n-layer");
  EXPECT_EQ(nearest("xyz", words), "");
  EXPECT_EQ(nearest("", words), "");
}

TEST(Options, RealsComeBackToTheBit) {
  for (const double x : {0.1, 1e-3 / 10, 1e-300, 5e-324, 1.7976931348623157e308, 6e-4, 0.0})
    EXPECT_EQ(parse_real(show_real(x), {}), x);
  for (const char* bad : {"", "x", "1e999", "nan", "inf", "0x1p3", " 1", "1 ", "+1", "1,5"})
    EXPECT_THROW(parse_real(bad, {}), UserError) << bad;
}

TEST(Options, TableSetsAndShows) {
  const auto table = make_table();
  Fields f;
  table.set(f, table.find("--n_items"), "7", "--n-items");
  EXPECT_EQ(f.count, 7);
  table.set(f, table.find("files"), "a,b", "--files");
  table.set(f, table.find("files"), "c", "--files");
  EXPECT_EQ(table.find("files").get(f), (std::vector<std::string>{"a", "b", "c"}));
  try {
    table.set(f, table.find("count"), "11", "here");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_STREQ(e.what(), "here: expected a whole number from 0 to 10; got '11'");
  }
}

TEST(Options, HelpListsEveryRow) {
  const auto infos = make_table().infos();
  const std::string help = options_help(infos, false), page = options_markdown(infos);
  for (const char* part : {"one:", "two:", "--count N", "how many [3]", "also: n-items",
                           "--[no-]fast", "--resume [DIR]", "--files FILE..."})
    EXPECT_NE(help.find(part), std::string::npos) << part << "\n" << help;
  EXPECT_EQ(help.find('\x1b'), std::string::npos);
  EXPECT_NE(options_help(infos, true).find("\x1b[1m"), std::string::npos);
  EXPECT_NE(page.find("| `--count N` | `3` | how many | `n-items` |"), std::string::npos) << page;
  EXPECT_NE(page.find("a\\|b"), std::string::npos) << page;
}

}  // namespace
}  // namespace brrr
