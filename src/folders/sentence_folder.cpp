#include "folders/sentence_folder.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/errors.h"
#include "base/file.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

namespace fs = std::filesystem;

struct PoolingKey {
  const char* name;
  models::Pooling pooling;
};
// In the order in which sentence-transformers puts the vectors one behind the other.
constexpr std::array kPoolingKeys = {
    PoolingKey{"pooling_mode_cls_token", models::Pooling::cls},
    PoolingKey{"pooling_mode_max_tokens", models::Pooling::max},
    PoolingKey{"pooling_mode_mean_tokens", models::Pooling::mean},
    PoolingKey{"pooling_mode_mean_sqrt_len_tokens", models::Pooling::mean_sqrt_len},
    PoolingKey{"pooling_mode_weightedmean_tokens", models::Pooling::weighted_mean},
    PoolingKey{"pooling_mode_lasttoken", models::Pooling::last_token}};
constexpr std::string_view kPoolingPrefix = "pooling_mode_";

Json read_object(const fs::path& path) {
  Json json = parse_json(read_file(path), path.string());
  if (!json.is_object())
    user_error("{}: expected an object; found {}", path.string(), describe(json));
  return json;
}

std::string known_poolings() {
  std::string known;
  for (const PoolingKey& key : kPoolingKeys)
    known += (known.empty() ? "" : ", ") + std::string(key.name).substr(kPoolingPrefix.size());
  return known;
}

std::vector<models::Pooling> read_pooling(const fs::path& path) {
  const Json json = read_object(path);
  std::vector<models::Pooling> list;
  for (const auto& [key, value] : json.items()) {
    if (!key.starts_with(kPoolingPrefix)) continue;
    if (!value.is_boolean())
      user_error("{}: {} must be true or false; found {}", path.string(), key, describe(value));
    const bool is_known = std::ranges::any_of(
        kPoolingKeys, [name = key](const PoolingKey& k) { return k.name == name; });
    if (value.get<bool>() && !is_known)
      user_error("{}: {} is not supported (supported: {})", path.string(), key, known_poolings());
  }
  // Newer files name one mode, or several, in a word.
  if (const Json mode = json.value("pooling_mode", Json()); !mode.is_null()) {
    const Json modes = mode.is_array() ? mode : Json::array({mode});
    for (const Json& m : modes) {
      const std::string name = m.is_string() ? m.get<std::string>() : "";
      const PoolingKey* found = nullptr;
      for (const PoolingKey& key : kPoolingKeys) {
        const std::string full = std::string(key.name).substr(kPoolingPrefix.size());
        if (full == name || full == name + "_tokens" || full == name + "_token") found = &key;
      }
      if (found == nullptr)
        user_error("{}: pooling_mode {} is not supported (supported: {})", path.string(),
                   describe(m), known_poolings());
      list.push_back(found->pooling);
    }
  } else {
    for (const PoolingKey& key : kPoolingKeys)
      if (json.value(key.name, false)) list.push_back(key.pooling);
  }
  if (list.empty())
    user_error("{}: no pooling is on; expected one of {}", path.string(), known_poolings());
  if (json.contains("include_prompt") && json["include_prompt"] == false)
    user_error("{}: include_prompt = false is not supported; expected true", path.string());
  return list;
}

/// The prompt that is put before texts unless another one is asked for.
std::string default_prompt(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return "";
  const Json json = read_object(path);
  const Json name = json.value("default_prompt_name", Json());
  if (name.is_null()) return "";
  const Json prompts = json.value("prompts", Json::object());
  const Json prompt = name.is_string() && prompts.is_object()
                          ? prompts.value(name.get<std::string>(), Json())
                          : Json();
  if (!prompt.is_string())
    user_error("{}: default_prompt_name is {}, which names no text in \"prompts\"", path.string(),
               describe(name));
  return prompt.get<std::string>();
}

}  // namespace

SentenceSettings read_sentence_settings(const fs::path& folder) {
  SentenceSettings settings;
  settings.model = folder;
  settings.prompt = default_prompt(folder / "config_sentence_transformers.json");
  std::error_code ignored;
  const fs::path modules = folder / "modules.json";
  if (const fs::path own = folder / "sentence_bert_config.json"; fs::exists(own, ignored)) {
    const Json json = read_object(own);
    settings.lowercase = json.value("do_lower_case", Json()) == true;
    const Json longest = json.value("max_seq_length", Json());
    if (!longest.is_null()) {
      if (!longest.is_number_integer() || longest.get<int64_t>() < 1)
        user_error("{}: max_seq_length must be a number of tokens; found {}", own.string(),
                   describe(longest));
      settings.longest = longest.get<int64_t>();
    }
  }
  if (!fs::exists(modules, ignored)) return settings;
  const Json list = parse_json(read_file(modules), modules.string());
  if (!list.is_array())
    user_error("{}: expected a list of modules; found {}", modules.string(), describe(list));
  for (const Json& module : list) {
    const Json type = module.is_object() ? module.value("type", Json()) : Json();
    const Json path = module.is_object() ? module.value("path", Json()) : Json();
    if (!type.is_string() || !path.is_string())
      user_error("{}: a module must have a \"type\" and a \"path\"; found {}", modules.string(),
                 describe(module));
    const auto full = type.get<std::string>();
    const std::string name = full.substr(full.rfind('.') + 1);
    const auto where = path.get<std::string>();
    if (name == "Pooling") {
      // A folder beside the model: a path could lead anywhere.
      if (fs::path(where).filename() != where)
        user_error("{}: the module {} must be in a folder of this folder; found {}",
                   modules.string(), name, in_quotes(where));
      settings.task.pooling = read_pooling(folder / where / "config.json");
      settings.is_said = true;
    } else if (name == "Normalize") {
      settings.task.normalize = true;
    } else if (name == "Transformer") {
      if (!where.empty() && fs::path(where).filename() == where) settings.model = folder / where;
    } else {
      user_error("{}: the module {} is not supported (supported: Transformer, Pooling, Normalize)",
                 modules.string(), in_quotes(full));
    }
  }
  return settings;
}

std::optional<int64_t> read_context(const fs::path& folder) {
  constexpr int64_t kNoLimit = 1 << 24;  // tokenizers without a limit say 10^30
  std::optional<int64_t> context;
  const auto look = [&](const char* file, const char* key) {
    std::error_code ignored;
    if (!fs::exists(folder / file, ignored)) return;
    const Json value = read_object(folder / file).value(key, Json());
    if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > kNoLimit)
      return;
    context = std::min(context.value_or(kNoLimit), value.get<int64_t>());
  };
  look("config.json", "max_position_embeddings");
  look("tokenizer_config.json", "model_max_length");
  return context;
}

}  // namespace brrr::io
