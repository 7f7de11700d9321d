// The rules of the house, checked over the sources: which folder may include which, where vendor
// headers may appear, what headers may not do.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace brrr {
namespace {

const fs::path kSource = fs::path(BRRR_SOURCE_DIR) / "src";

// The ground floor first. A folder may include itself and folders above it in this list; entries
// with the same number stand side by side and may not include each other.
const std::vector<std::pair<std::string, int>> kFloors = {
    {"base", 0},     {"ir", 1},      {"ops", 2},      {"passes", 3},   {"runtime", 4},
    {"backend", 5},  {"formats", 6}, {"modules", 7},  {"web", 8},      {"text", 9},
    {"models", 10},  {"optim", 11},  {"folders", 12}, {"data", 13},    {"sampling", 14},
    {"machine", 15}, {"infer", 16},  {"train", 16},   {"insight", 17}, {"calibration", 17},
    {"library", 18}, {"cli", 19}};

struct Source {
  fs::path path;
  std::string name;    // "data/shard.h"
  std::string folder;  // "io"
  std::string text;
  bool header = false;
};

const std::vector<Source>& sources() {
  static const std::vector<Source> all = [] {
    std::vector<Source> list;
    for (const auto& entry : fs::recursive_directory_iterator(kSource)) {
      const std::string extension = entry.path().extension();
      if (!entry.is_regular_file() || (extension != ".h" && extension != ".cpp")) continue;
      const fs::path relative = fs::relative(entry.path(), kSource);
      const std::string folder =
          std::distance(relative.begin(), relative.end()) > 1 ? relative.begin()->string() : "";
      list.push_back(
          {entry.path(), relative.string(), folder, read_file(entry.path()), extension == ".h"});
    }
    std::sort(list.begin(), list.end(),
              [](const Source& a, const Source& b) { return a.name < b.name; });
    return list;
  }();
  return all;
}

std::string_view without_indent(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

template <typename Visit>
void each_line(std::string_view text, Visit&& visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1);
    visit(without_indent(text.substr(0, end)));
    text.remove_prefix(end + 1);
  }
}

/// What a file includes, in quotes or in angle brackets.
std::vector<std::string> includes_of(const Source& source, bool angle) {
  std::vector<std::string> names;
  each_line(source.text, [&](std::string_view line) {
    if (!line.starts_with('#')) return;
    line = without_indent(line.substr(1));
    if (!line.starts_with("include")) return;
    line = without_indent(line.substr(7));
    if (!line.starts_with(angle ? '<' : '"')) return;
    line.remove_prefix(1);
    names.emplace_back(line.substr(0, line.find(angle ? '>' : '"')));
  });
  return names;
}

int floor_of(const std::string& folder) {
  for (const auto& [name, floor] : kFloors)
    if (name == folder) return floor;
  return -1;
}

TEST(House, SourcesAreFound) { EXPECT_GT(sources().size(), 50u) << kSource; }

TEST(House, EveryFolderHasItsFloor) {
  for (const Source& s : sources())
    EXPECT_TRUE(s.folder.empty() || floor_of(s.folder) >= 0)
        << s.name << " is in an unknown folder";
}

TEST(House, FoldersIncludeOnlyWhatIsBelow) {
  size_t checked = 0;
  for (const Source& s : sources()) {
    if (s.folder.empty()) continue;  // the public face may include all
    for (const std::string& name : includes_of(s, false)) {
      const std::string folder = name.substr(0, name.find('/'));
      ASSERT_TRUE(fs::exists(kSource / name))
          << s.name << " includes \"" << name << "\", which is not rooted at src/";
      EXPECT_LE(floor_of(folder), floor_of(s.folder)) << s.name << " includes \"" << name << '"';
      ++checked;
    }
  }
  EXPECT_GT(checked, 100u);
}

// What an architecture is stands in models/<name>/; everybody else asks the seam, models/model.h,
// and models/adapters/ and models/losses/, which know no architecture either.
TEST(House, ArchitecturesStayBehindTheSeam) {
  const auto is_private = [](const std::string& name) {
    return name.starts_with("models/") && !name.starts_with("models/adapters/") &&
           !name.starts_with("models/losses/") && std::count(name.begin(), name.end(), '/') > 1;
  };
  std::set<std::string> private_types;
  for (const Source& s : sources()) {
    if (!is_private(s.name) || !s.header) continue;
    each_line(s.text, [&](std::string_view line) {
      if (!line.starts_with("struct ") && !line.starts_with("class ")) return;
      line.remove_prefix(line.find(' ') + 1);
      line = line.substr(0, line.find_first_of(" ;{:"));
      if (line.ends_with("Config")) private_types.emplace(line);
    });
  }
  EXPECT_TRUE(private_types.contains("Gpt2Config"));
  for (const Source& s : sources()) {
    if (s.folder == "models") continue;
    for (const std::string& name : includes_of(s, false))
      EXPECT_FALSE(is_private(name)) << s.name << " includes \"" << name << '"';
    for (const std::string& type : private_types)
      EXPECT_EQ(s.text.find(type), std::string::npos) << s.name << " knows " << type;
  }
}

// Backends do not know each other, but for the reference interpreter, which every kernel list ends
// with.
TEST(House, BackendsDoNotIncludeEachOther) {
  for (const Source& s : sources()) {
    if (s.folder != "backend") continue;
    const auto backend_of = [](const std::string& name) {
      const size_t begin = name.find('/') + 1;
      return name.substr(begin, name.find('/', begin) - begin);
    };
    for (const std::string& name : includes_of(s, false))
      EXPECT_TRUE(!name.starts_with("backend/") || backend_of(name) == backend_of(s.name) ||
                  backend_of(name) == "reference")
          << s.name << " includes \"" << name << '"';
  }
}

TEST(House, VendorHeadersStayInTheirBackend) {
  const std::map<std::string, std::string> homes = {
      {"dnnl", "backend/cpu/"},       {"hwy/", "backend/cpu/"},     {"immintrin", "backend/cpu/"},
      {"cuda", "backend/cuda/"},      {"cublas", "backend/cuda/"},  {"cudnn", "backend/cuda/"},
      {"jpeglib", "formats/images/"}, {"png.h", "formats/images/"}, {"webp/", "formats/images/"}};
  std::set<std::string> seen;
  for (const Source& s : sources())
    for (const std::string& name : includes_of(s, true))
      for (const auto& [start, home] : homes)
        if (name.starts_with(start)) {
          seen.insert(start);
          // SHA-256 uses the processor's instructions and belongs to base/.
          if (s.name == "base/sha256.cpp" && start == "immintrin") continue;
          // Loaders resize pictures whatever the backend is.
          if (s.name == "data/images/resize_rows.cpp" && start == "hwy/") continue;
          EXPECT_TRUE(s.name.starts_with(home)) << s.name << " includes <" << name << ">";
        }
  EXPECT_TRUE(seen.count("dnnl") && seen.count("hwy/")) << "the pattern found nothing to check";
}

TEST(House, HeadersAreGuardedAndImportNoNamespace) {
  for (const Source& s : sources()) {
    if (!s.header) continue;
    each_line(s.text, [&](std::string_view line) {
      EXPECT_FALSE(line.starts_with("using namespace")) << s.name << " has `using namespace`";
    });
    // Highway's per-target headers (*-inl.h) are included once per target and guard themselves.
    if (s.name.ends_with("-inl.h")) continue;
    EXPECT_NE(s.text.find("#pragma once"), std::string::npos) << s.name;
  }
}

// A header opens with what the thing is and promises.
TEST(House, HeadersOpenWithAComment) {
  for (const Source& s : sources()) {
    if (!s.header) continue;
    std::string_view text = s.text;
    if (text.starts_with("#pragma once\n")) text.remove_prefix(13);
    while (text.starts_with("\n")) text.remove_prefix(1);
    EXPECT_TRUE(text.starts_with("//")) << s.name << " does not open with a comment";
  }
}

// A folder of more files is several rooms. ops/ is one: a file for each op.
TEST(House, FoldersStayReadable) {
  std::map<fs::path, int> files;
  for (const Source& s : sources()) ++files[s.path.parent_path()];
  for (const auto& [folder, count] : files)
    EXPECT_LE(count, 40) << folder << " has " << count << " files: split it by subject";
}

TEST(House, FilesStayReadable) {
  for (const Source& s : sources())
    EXPECT_LE(std::count(s.text.begin(), s.text.end(), '\n'), 600) << s.name;
}

// Only the table reads the environment, so `brrr info --env` tells all.
TEST(House, EnvironmentIsReadThroughTheTable) {
  for (const Source& s : sources())
    EXPECT_TRUE(s.name == "base/env.cpp" || s.text.find("getenv(") == std::string::npos)
        << s.name << " calls getenv";
}

// Messages that nobody can read end no run: tell() writes them, where printing would throw.
TEST(House, MessagesGoThroughTell) {
  for (const Source& s : sources())
    for (const char* call : {"print(stderr", ", stderr)"})
      EXPECT_TRUE(s.name == "base/tell.cpp" || s.text.find(call) == std::string::npos)
          << s.name << " writes to standard error by itself";
}

// The test folders mirror the source folders.
TEST(House, EveryFolderIsTested) {
  for (const auto& [folder, floor] : kFloors) {
    const fs::path tests = fs::path(BRRR_SOURCE_DIR) / "tests" / folder;
    bool found = false;
    if (fs::is_directory(tests))
      for (const auto& entry : fs::directory_iterator(tests))
        found |= entry.path().filename().string().ends_with("_test.cpp");
    EXPECT_TRUE(found) << "tests/" << folder << " has no test";
  }
}

}  // namespace
}  // namespace brrr
