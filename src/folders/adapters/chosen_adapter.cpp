// The option --adapter [NAME=]FOLDER[=SCALE].

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "base/options.h"
#include "folders/adapters/adapter_folder.h"
#include "formats/file_kind.h"

namespace brrr::io {
namespace {

constexpr const char* kForm = "[NAME=]FOLDER[=SCALE]";
constexpr double kMostScale = 1e6;

bool is_present(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// One way to read the text of the option.
struct Reading {
  std::string text;
  bool has_name = false, has_scale = false;

  std::string name() const { return has_name ? text.substr(0, text.find('=')) : ""; }
  std::string folder() const {
    const size_t begin = has_name ? text.find('=') + 1 : 0;
    return text.substr(begin, has_scale ? text.rfind('=') - begin : std::string::npos);
  }
  std::string scale() const { return has_scale ? text.substr(text.rfind('=') + 1) : ""; }
};

/// The way to read the text that names a folder that exists. The name of a folder may contain '='.
Reading reading_of(const std::string& text) {
  const size_t first = text.find('='), last = text.rfind('=');
  if (first == std::string::npos || is_present(text)) return {text};
  std::vector<Reading> readings{{text, false, true}, {text, true, false}};
  if (first != last) readings.push_back({text, true, true});
  std::erase_if(readings, [](const Reading& r) { return !is_present(r.folder()); });
  const auto fits = [](const Reading& r) { return !r.has_scale || is_real(r.scale()); };
  if (const auto at = std::ranges::find_if(readings, fits); at != readings.end()) return *at;
  if (!readings.empty()) return readings[0];  // its scale is refused
  const bool has_scale = is_real(text.substr(last + 1));
  return {text, first != last || !has_scale, has_scale};
}

[[noreturn]] void refuse_path(const std::string& text, const fs::path& path) {
  const std::string expected = fmt::format("expected {}, where FOLDER has {} and {}", kForm,
                                           kAdapterConfig, kAdapterWeights);
  if (!is_present(path))
    user_error("--adapter {}: there is no folder '{}'; {}", text, path.string(), expected);
  const std::string file = path.filename().string();
  if (file == kAdapterConfig || file == kAdapterWeights || file == kAdapterPickle)
    user_error("--adapter {}: expected the folder that the file is in: --adapter {}", text,
               path.has_parent_path() ? path.parent_path().string() : ".");
  const std::optional<FileKind> kind = kind_of_file(path);
  const std::string what = path.extension() == ".gguf"
                               ? "a GGUF file, and adapters in this format are not read"
                           : kind ? kind->name
                                  : "a file";
  user_error("--adapter {}: '{}' is {}; {}", text, path.string(), what, expected);
}

}  // namespace

std::string last_part(const fs::path& folder) {
  const fs::path whole = fs::absolute(folder).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

ChosenAdapter parse_adapter(const std::string& text) {
  const Reading reading = reading_of(text);
  ChosenAdapter adapter{.folder = reading.folder(), .name = reading.name()};
  if (reading.has_name && adapter.name.empty())
    usage_error("--adapter {}: expected {}; the name in front of '=' is empty", text, kForm);
  if (adapter.folder.empty())
    usage_error("--adapter {}: expected {}; the folder is empty", text.empty() ? "''" : text,
                kForm);
  if (!reading.has_scale) return adapter;
  try {
    adapter.weight = parse_real(reading.scale(), {.low = -kMostScale, .high = kMostScale});
  } catch (const UserError&) {
    usage_error("--adapter {}: expected {} with a number from {} to {} as SCALE; got '{}'", text,
                kForm, -kMostScale, kMostScale, reading.scale());
  }
  return adapter;
}

std::vector<ChosenAdapter> parse_adapters(const std::vector<std::string>& texts) {
  std::vector<ChosenAdapter> adapters;
  for (const std::string& text : texts) {
    ChosenAdapter adapter = parse_adapter(text);
    std::error_code ignored;
    if (!fs::is_directory(adapter.folder, ignored)) refuse_path(text, adapter.folder);
    if (adapter.name.empty()) adapter.name = last_part(adapter.folder);
    // The newest checkpoint of a run.
    if (!is_present(adapter.folder / kAdapterConfig))
      adapter.folder = find_model(adapter.folder.string());
    if (!is_present(adapter.folder / kAdapterConfig))
      user_error("--adapter {}: a model, not an adapter: expected a folder with {} and {}", text,
                 kAdapterConfig, kAdapterWeights);
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

}  // namespace brrr::io
