#include "folders/hub/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "base/cache.h"
#include "base/encoding/ascii.h"
#include "base/errors.h"
#include "base/system_text.h"
#include "folders/hub/hub_gguf.h"
#include "folders/weights.h"
#include "formats/gguf/gguf_file.h"

namespace brrr::io {
namespace {

bool is_name_part(std::string_view part) {
  const auto may_stand = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  return !part.empty() && part.size() <= 96 && part.front() != '.' && part.front() != '-' &&
         part.find("--") == std::string_view::npos && part.find("..") == std::string_view::npos &&
         std::all_of(part.begin(), part.end(), may_stand);
}

bool is_revision(std::string_view text) {
  while (true) {
    const size_t slash = std::min(text.find('/'), text.size());
    if (!is_name_part(text.substr(0, slash))) return false;
    if (slash == text.size()) return true;
    text.remove_prefix(slash + 1);
  }
}

std::string commit_of(const HubName& name) {
  if (is_commit(name.revision)) return name.revision;
  const std::string text = system_text::read_or_empty(hub_folder_of(name) / "refs" / name.revision);
  const std::string commit(system_text::trimmed(text));
  return is_commit(commit) ? commit : "";
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

bool is_commit(std::string_view name) {
  return name.size() == 40 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::optional<HubName> parse_hub_name(const std::string& text) {
  HubName name;
  std::string whole = text;
  if (const size_t colon = text.rfind(':'); colon != std::string::npos) {
    name.gguf_type = text.substr(colon + 1);
    whole.resize(colon);
    if (!is_name_part(name.gguf_type) || whole.find('/') == std::string::npos) return std::nullopt;
  }
  const size_t at = std::min(whole.find('@'), whole.size());
  name.id = whole.substr(0, at);
  if (at < whole.size()) name.revision = whole.substr(at + 1);
  for (const char* known : {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"})
    if (name.id == known) name.id = "openai-community/" + name.id;
  const size_t slash = std::min(name.id.find('/'), name.id.size());
  const bool has_owner = slash < name.id.size();
  if (!is_name_part(std::string_view(name.id).substr(0, slash)) || !is_revision(name.revision) ||
      (has_owner && !is_name_part(std::string_view(name.id).substr(slash + 1))))
    return std::nullopt;
  return name;
}

fs::path hub_folder_of(const HubName& name) {
  std::string key = name.id;
  if (const size_t slash = key.find('/'); slash != std::string::npos) key.replace(slash, 1, "--");
  return hugging_face_cache() / ("models--" + key);
}

fs::path find_snapshot(const HubName& name) {
  const fs::path snapshots = hub_folder_of(name) / "snapshots";
  std::error_code error;
  if (const std::string commit = commit_of(name); !commit.empty()) {
    const fs::path snapshot = snapshots / commit;
    if (fs::is_directory(snapshot, error)) return snapshot;
  }
  if (name.revision != "main") return {};
  // Somebody copied a snapshot without its ref: any that is a model will do.
  std::vector<fs::path> models, others;
  for (const auto& entry : fs::directory_iterator(snapshots, error))
    (holds_model(entry.path()) ? models : others).push_back(entry.path());
  for (const auto& found : {models, others})
    if (!found.empty()) return *std::max_element(found.begin(), found.end());
  return {};
}

fs::path gguf_in(const fs::path& snapshot, const std::string& type) {
  std::vector<std::string> files;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(snapshot, error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error))
    if (entry->is_regular_file(error))
      files.push_back(entry->path().lexically_relative(snapshot).string());
  const std::vector<std::string> parts = gguf_files_of(files, type);
  if (parts.empty()) return {};
  const fs::path first = snapshot / parts[0];
  // Several files are parts 1 to N of N; one file is whole, or one part of several.
  const bool is_split = first.stem().string().find("-of-") != std::string::npos;
  for (int64_t count = 2; is_split && count <= 99'999; ++count)
    if (const auto part = gguf_part(first, 1, count); part)
      return *part == first && std::ssize(parts) == count ? first : fs::path();
  return first;
}

bool is_web_page(const fs::path& file) {
  std::string begin(64, '\0');
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return false;
  begin.resize(InputFile(file).read(begin.data(), begin.size()));
  begin = ascii_lowercase(
      begin.substr(std::min(begin.find_first_not_of(" \t\r\n\xef\xbb\xbf"), begin.size())));
  return begin.starts_with("<!doctype html") || begin.starts_with("<html");
}

std::string missing_in(const fs::path& snapshot) {
  if (!is_there(snapshot / "config.json")) return "config.json";
  if (!holds_model(snapshot)) return kSingleWeights;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(snapshot, error))
    for (const char* ending : {".json", ".txt", ".jinja", ".model"})
      if (entry.path().extension() == ending && is_web_page(entry.path()))
        return entry.path().filename().string();
  if (!is_there(snapshot / kSingleWeights))
    for (const std::string& shard : shards_of_index(snapshot / kWeightIndex))
      if (!is_there(snapshot / shard)) return shard;
  for (const char* tokenizer :
       {"tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt"})
    if (is_there(snapshot / tokenizer)) return "";
  return "its tokenizer";
}

}  // namespace brrr::io
