#include "folders/hub/hub_gguf.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/encoding/ascii.h"
#include "base/file.h"

namespace brrr::io {
namespace {

constexpr std::string_view kGgufEnding = ".gguf";

struct GgufRepositoryFile {
  std::string file;
  std::string stem;  // the name without folder, number of the part and ending, in small letters
  std::string type;  // what stands behind the last '-' or '.' of the stem; "": nothing
};

/// Files of models: those of projectors and importance matrices are none.
std::optional<GgufRepositoryFile> read_name(const std::string& file) {
  GgufRepositoryFile f{file, ascii_lowercase(fs::path(file).filename().string()), ""};
  if (!f.stem.ends_with(kGgufEnding)) return std::nullopt;
  f.stem.resize(f.stem.size() - kGgufEnding.size());
  if (f.stem.find("mmproj") != std::string::npos || f.stem.find("imatrix") != std::string::npos)
    return std::nullopt;
  // "-00001-of-00003"
  constexpr size_t kPart = 15;
  if (f.stem.size() > kPart) {
    const std::string part = f.stem.substr(f.stem.size() - kPart);
    const bool is_part = part[0] == '-' && part.substr(6, 4) == "-of-" &&
                         part.find_first_not_of("0123456789", 1) == 6 &&
                         part.find_first_not_of("0123456789", 10) == std::string::npos;
    if (is_part) f.stem.resize(f.stem.size() - kPart);
  }
  const size_t mark = f.stem.find_last_of("-.");
  f.type = mark == std::string::npos ? f.stem : f.stem.substr(mark + 1);
  return f;
}

bool has_type(const GgufRepositoryFile& f, const std::string& type) {
  if (!f.stem.ends_with(type)) return false;
  const size_t before = f.stem.size() - type.size();
  return before == 0 || std::string_view("-._").find(f.stem[before - 1]) != std::string_view::npos;
}

}  // namespace

std::vector<std::string> gguf_files_of(const std::vector<std::string>& files,
                                       const std::string& type) {
  // By folder and stem: the parts of one model.
  std::map<std::string, std::vector<std::string>> models, of_type;
  const std::string wanted = ascii_lowercase(type.empty() ? kUsualGgufType : type);
  for (const std::string& file : files) {
    const auto f = read_name(file);
    if (!f) continue;
    const std::string model = (fs::path(file).parent_path() / f->stem).string();
    models[model].push_back(file);
    if (has_type(*f, wanted)) of_type[model].push_back(file);
  }
  // Of "UD-Q4_K_M" and "Q4_K_M" the one that says no more.
  const auto& found = of_type.empty() && type.empty() && models.size() == 1 ? models : of_type;
  if (found.empty()) return {};
  const auto shortest =
      std::ranges::min_element(found, {}, [](const auto& entry) { return entry.first.size(); });
  std::vector<std::string> parts = shortest->second;
  std::ranges::sort(parts);
  return parts;
}

std::vector<std::string> gguf_types_in(const std::vector<std::string>& files) {
  std::vector<std::string> types;
  for (const std::string& file : files)
    if (const auto f = read_name(file)) {
      std::string type = f->type;
      std::ranges::transform(type, type.begin(), [](unsigned char c) {
        return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : static_cast<char>(c);
      });
      if (std::ranges::find(types, type) == types.end()) types.push_back(type);
    }
  std::ranges::sort(types);
  return types;
}

}  // namespace brrr::io
