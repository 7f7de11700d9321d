#include "folders/cross_encoder.h"

#include "base/errors.h"
#include "base/file.h"
#include "formats/json_file.h"
#include "models/torch_activation.h"

namespace brrr::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSettings = "config_sentence_transformers.json";

/// Reads a JSON object from a file; null if the file does not exist.
Json object_of(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return Json();
  Json json = parse_json(read_file(path), path.string());
  if (!json.is_object())
    user_error("{}: expected an object; found {}", path.string(), describe(json));
  return json;
}

/// Returns the name of a torch activation, else "". Other names refer to code in the folder, for
/// which sentence-transformers falls back to the default, too, unless told to trust it.
std::string activation_of(const Json& name, const fs::path& path) {
  if (!name.is_string()) return "";
  const auto& text = name.get_ref<const std::string&>();
  if (!text.starts_with("torch.")) return "";
  if (models::torch_activation(text) == nullptr)
    user_error("{}: the activation {} is not supported (supported, of torch.nn: {})", path.string(),
               in_quotes(text), models::torch_activation_names());
  return text;
}

}  // namespace

bool makes_vectors(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / "modules.json", ignored)) return false;
  const Json settings = object_of(folder / kSettings);
  return !settings.is_object() || settings.value("model_type", Json()) != "CrossEncoder";
}

std::string score_activation(const fs::path& folder) {
  if (const Json settings = object_of(folder / kSettings); settings.is_object())
    if (const std::string name =
            activation_of(settings.value("activation_fn", Json()), folder / kSettings);
        !name.empty())
      return name;
  const fs::path path = folder / "config.json";
  if (const Json config = object_of(path); config.is_object()) {
    const Json own = config.value("sentence_transformers", Json());
    // sentence-transformers before version 4 wrote sbert_ce_default_activation_function.
    const Json name = own.is_object() && own.contains("activation_fn")
                          ? own["activation_fn"]
                          : config.value("sbert_ce_default_activation_function", Json());
    if (const std::string found = activation_of(name, path); !found.empty()) return found;
  }
  return "Sigmoid";
}

}  // namespace brrr::io
