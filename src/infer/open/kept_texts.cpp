#include "infer/open/kept_texts.h"

#include <algorithm>

#include "base/temporary_folder.h"
#include "formats/json_file.h"

namespace brrr::infer {
namespace {

/// Writes files into a temporary folder, because tokenizers are read from folders.
class TemporaryFiles {
 public:
  explicit TemporaryFiles(const std::map<std::string, std::string>& files) : folder_("brrr-texts") {
    for (const auto& [name, text] : files) write_cache_file(folder_.path() / name, text);
  }
  const fs::path& folder() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

DecoderSettings read_settings(const std::string& text) {
  const io::Json json = io::parse_json(text, kDecoderSettings);
  try {
    DecoderSettings settings{.ends_of_text = json.at("ends_of_text"),
                             .stop_strings = json.at("stop_strings"),
                             .max_new_tokens = std::nullopt};
    if (json.contains("max_new_tokens"))
      settings.max_new_tokens = std::max<int64_t>(1, json["max_new_tokens"].get<int64_t>());
    return settings;
  } catch (const io::Json::exception&) {
    user_error("{}: expected lists as ends_of_text and stop_strings, and a number",
               kDecoderSettings);
  }
}

}  // namespace

KeptTexts kept_texts(const Runnable& module, bool with_tools) {
  const std::map<std::string, std::string> files = module.files();
  if (files.empty()) return {};
  const auto settings = files.find(kDecoderSettings);
  const TemporaryFiles copies(files);
  return {io::load_tokenizer(copies.folder()), io::ChatTemplate::read(copies.folder(), with_tools),
          settings == files.end() ? DecoderSettings() : read_settings(settings->second)};
}

std::string settings_text(const DecoderSettings& settings) {
  io::Json json{{"ends_of_text", settings.ends_of_text}, {"stop_strings", settings.stop_strings}};
  if (settings.max_new_tokens) json["max_new_tokens"] = *settings.max_new_tokens;
  return json.dump();
}

}  // namespace brrr::infer
