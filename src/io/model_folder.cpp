#include "io/model_folder.h"

#include <algorithm>
#include <vector>

#include "base/env.h"
#include "io/checkpoint.h"

namespace brrr::io {
namespace {

fs::path hub_folder() {
  if (const auto home = env::get("HF_HOME")) return fs::path(*home) / "hub";
  if (const auto cache = env::get("XDG_CACHE_HOME"))
    return fs::path(*cache) / "huggingface" / "hub";
  return fs::path(env::get("HOME").value_or(".")) / ".cache" / "huggingface" / "hub";
}

bool holds_model(const fs::path& folder) {
  return fs::exists(folder / "config.json") && fs::exists(folder / "model.safetensors");
}

// The snapshot of a model name in Hugging Face's cache, or an empty path.
fs::path find_in_hub(const std::string& name) {
  std::string key = name;
  for (size_t at = 0; (at = key.find('/', at)) != std::string::npos; at += 2)
    key.replace(at, 1, "--");
  std::vector<std::string> keys{key};
  if (name.find('/') == std::string::npos) keys.push_back("openai-community--" + key);
  for (const std::string& k : keys) {
    std::error_code error;
    std::vector<fs::path> snapshots;
    for (const auto& entry :
         fs::directory_iterator(hub_folder() / ("models--" + k) / "snapshots", error))
      if (holds_model(entry.path())) snapshots.push_back(entry.path());
    if (!snapshots.empty()) return *std::max_element(snapshots.begin(), snapshots.end());
  }
  return {};
}

// The run whose model or options were written last.
std::optional<fs::path> newest_run() {
  std::optional<fs::path> best;
  fs::file_time_type best_time;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("runs", error)) {
    if (!entry.is_directory()) continue;
    if (!holds_model(entry.path()) && list_checkpoints(entry.path()).empty()) continue;
    const auto time = fs::last_write_time(entry.path(), error);
    if (error || (best && time <= best_time)) continue;
    best = entry.path();
    best_time = time;
  }
  return best;
}

}  // namespace

fs::path find_model(const std::string& name,
                    const std::function<void(const std::string&)>& on_damaged) {
  if (name.empty()) {
    const auto run = newest_run();
    if (!run)
      user_error("there is no run with a model in runs/: train one, or name a folder by --model");
    return find_model(run->string(), on_damaged);
  }
  const fs::path path(name);
  if (fs::is_directory(path)) {
    if (holds_model(path)) return path;
    const auto checkpoint = latest_valid(
        path, on_damaged ? on_damaged : [](const std::string&) {});
    if (checkpoint) return checkpoint->folder;
    user_error(
        "{} holds no model: config.json and model.safetensors, or a checkpoint-* folder with "
        "them, were expected",
        name);
  }
  if (fs::exists(path))
    user_error("{} is a file; the folder that holds config.json and model.safetensors was expected",
               name);
  const fs::path hub = find_in_hub(name);
  if (!hub.empty()) return hub;
  user_error("there is no folder {}, and no model of that name in {}", name, hub_folder().string());
}

ModelFolder open_model(const fs::path& folder) {
  if (fs::exists(folder / "manifest.json")) open_checkpoint(folder);
  ModelFolder model;
  model.folder = folder;
  model.config = read_gpt2_config(folder / "config.json");
  model.file = std::make_unique<SafetensorsFile>(folder / "model.safetensors");
  model.tensors = match_tensors(*model.file, model.config);
  model.tokenizer = load_tokenizer(folder);
  if (model.tokenizer->vocab_size() > model.config.vocab_size)
    user_error(
        "{}: the tokenizer has {} tokens, the model's vocabulary {}: they do not belong together",
        folder.string(), model.tokenizer->vocab_size(), model.config.vocab_size);
  return model;
}

}  // namespace brrr::io
