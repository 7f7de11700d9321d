// What the program says to people, gathered from the sources into docs/messages.txt, so that it can
// be read from top to bottom; and the phrases of a dialect that nobody outside it understands.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <regex>
#include <string_view>
#include <vector>

#include "base/env.h"
#include "base/file.h"

namespace brrr {
namespace {

const fs::path kRoot = BRRR_SOURCE_DIR;

/// The string literals of C++ source; those that stand side by side are one. Comments, characters,
/// raw strings (pages, kernels) and #include lines are passed over.
std::vector<std::string> literals_of(std::string_view text) {
  std::vector<std::string> all;
  bool joins = false;  // nothing but space since the last literal
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const auto skip_to = [&](std::string_view end) {
      const size_t at = text.find(end, i + 1);
      i = at == std::string_view::npos ? text.size() : at + end.size();
    };
    if (rest.starts_with("//") || rest.starts_with("#include")) {
      skip_to("\n");
    } else if (rest.starts_with("/*")) {
      skip_to("*/");
    } else if (rest.starts_with("R\"")) {
      const size_t open = text.find('(', i);
      skip_to(")" + std::string(text.substr(i + 2, open - i - 2)) + "\"");
      joins = false;
    } else if (text[i] == '\'' &&
               (i == 0 || !std::isalnum(static_cast<unsigned char>(text[i - 1])))) {
      for (++i; i < text.size() && text[i] != '\''; ++i) i += text[i] == '\\';
      ++i;
      joins = false;
    } else if (text[i] == '"') {
      std::string literal;
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] == '\\') literal += text[i++];
        literal += text[i];
      }
      ++i;
      if (joins)
        all.back() += literal;
      else
        all.push_back(literal);
      joins = true;
    } else {
      joins = joins && std::isspace(static_cast<unsigned char>(text[i])) != 0;
      ++i;
    }
  }
  return all;
}

/// Whether it is said to people: at least three words of letters.
bool is_sentence(const std::string& literal) {
  int words = 0, letters = 0;
  for (const char c : literal + " ") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      ++letters;
    } else {
      words += letters >= 2 && (c == ' ' || c == ',' || c == ';' || c == ':' || c == '.');
      letters = 0;
    }
  }
  const bool is_code =
      literal.find("  ") != std::string::npos && literal.find(';') != std::string::npos;
  return words >= 3 && !is_code && literal.find('<') == std::string::npos;
}

struct Said {
  std::string file, text;
};

std::vector<Said> all_said() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "src")) {
    const std::string extension = entry.path().extension();
    // Kernels of GPUs are text, too.
    const bool is_kernel = entry.path().string().find("/backend/cuda/") != std::string::npos;
    if (entry.is_regular_file() && !is_kernel && (extension == ".h" || extension == ".cpp"))
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Said> said;
  for (const fs::path& file : files)
    for (const std::string& literal : literals_of(read_file(file)))
      if (is_sentence(literal))
        said.push_back({fs::relative(file, kRoot / "src").string(), literal});
  return said;
}

TEST(Messages, AreAllInOneFileToRead) {
  std::string page =
      "What the program says, by source file: errors, notes, help. Gathered by\n"
      "tests/architecture/messages_test.cpp (BRRR_UPDATE=1 writes it anew); {} stands for a "
      "value.\n";
  std::string file;
  for (const Said& s : all_said()) {
    if (s.file != file) page += "\n" + s.file + "\n";
    file = s.file;
    page += "  " + s.text + "\n";
  }
  const fs::path path = kRoot / "docs" / "messages.txt";
  if (env::get("BRRR_UPDATE")) write_file_atomically(path, page);
  EXPECT_TRUE(read_file(path) == page)
      << "docs/messages.txt is old; write it anew with BRRR_UPDATE=1 and read what changed";
}

// "1 steps" is what counted() is for (base/human.h). A number that is a limit, or more than one by
// what was asked before, may stand bare.
TEST(Messages, CountsAgreeWithTheirNouns) {
  const std::regex bare(
      R"(\{[^{}]*\} (steps|texts|layers|kernels|plans|files|nodes|epochs|warnings|checkpoints)\b)");
  for (const Said& s : all_said()) {
    const bool is_allowed = std::ranges::any_of(
        std::initializer_list<const char*>{
            "more than {} steps", "more than {} nodes", "the last {} steps", "{} layers, {} each",
            "{} starts, {} ends", "the shape {} for {} texts", "chunks of {}, {} files"},
        [&](const char* part) { return s.text.find(part) != std::string::npos; });
    EXPECT_TRUE(is_allowed || !std::regex_search(s.text, bare)) << s.file << ": " << s.text;
  }
}

TEST(Messages, AreNotInADialect) {
  for (const Said& s : all_said())
    for (const char* phrase : {"apart by commas",
                               "number that is none",
                               "that is none",
                               "reckoned",
                               "worth much",
                               "held up by",
                               "times as long as",
                               "meanwhile",
                               "time of slow",
                               "another way round",
                               "goes by the",
                               "is to be told",
                               "was expected",
                               "were expected",
                               "anew",
                               "likeliest",
                               "The way out",
                               "of no effect",
                               "ugly",
                               "is none of",
                               "cannot be known",
                               "say --",
                               "a line each",
                               "any that is free",
                               "is of step",
                               "going on without",
                               "has no meaning"})
      EXPECT_EQ(s.text.find(phrase), std::string::npos) << s.file << ": " << s.text;
}

TEST(Messages, AreFoundInSources) {
  EXPECT_EQ(literals_of(
                "f(\"a b\"\n  \"c\", 'x', \"d\\\"e\"); // \"no\"\n/* \"no\" */ R\"x(no)x\" \"y\""),
            (std::vector<std::string>{"a bc", "d\\\"e", "y"}));
  EXPECT_TRUE(is_sentence("expected one of {}; got {}, too"));
  EXPECT_FALSE(is_sentence("n-layer"));
}

}  // namespace
}  // namespace brrr
