#include "folders/model_folder.h"

#include <algorithm>
#include <vector>

#include "base/env.h"
#include "base/options.h"
#include "folders/checkpoint.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

fs::path hub_folder() {
  if (const auto home = env::get("HF_HOME")) return fs::path(*home) / "hub";
  if (const auto cache = env::get("XDG_CACHE_HOME"))
    return fs::path(*cache) / "huggingface" / "hub";
  return fs::path(env::get("HOME").value_or(".")) / ".cache" / "huggingface" / "hub";
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

constexpr const char* kChecksums = "checksums.json";
constexpr const char* kModel = "model.safetensors";

/// Throws UserError where checksums.json says something else about the model.
void check_model(const fs::path& folder) {
  const fs::path record = folder / kChecksums, path = folder / kModel;
  std::error_code ignored;
  if (!fs::exists(record, ignored) || !fs::exists(path, ignored)) return;
  const Json json = parse_json(read_file(record), record.string());
  const Json entry = json.is_object() ? json.value(kModel, Json()) : Json();
  if (!entry.is_object() || !entry.value("bytes", Json()).is_number_unsigned() ||
      !entry.value("crc32c", Json()).is_string())
    user_error(
        "{}: expected the size and the checksum of {}; delete it if the model is known to be "
        "good",
        record.string(), kModel);
  const FileSum recorded{entry["bytes"].get<uint64_t>(), entry["crc32c"].get<std::string>()};
  const FileSum found = sum_of_file(path);
  if (found == recorded) return;
  const std::vector<Checkpoint> checkpoints = list_checkpoints(folder);
  user_error(
      "{} is damaged: {} bytes with checksum {}, {} says {} bytes with {}; {} (or delete {} if the "
      "file was replaced on purpose)",
      path.string(), found.bytes, found.crc32c, kChecksums, recorded.bytes, recorded.crc32c,
      checkpoints.empty() ? "take another copy"
                          : "take its checkpoint " + checkpoints.back().folder.string(),
      kChecksums);
}

/// What the user may have meant by a name that is nothing: the runs that there are.
std::string advice_for(const std::string& name) {
  std::vector<std::string> runs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("runs", error))
    if (entry.is_directory() &&
        (holds_model(entry.path()) || !list_checkpoints(entry.path()).empty()))
      runs.push_back(entry.path().string());
  std::sort(runs.begin(), runs.end());
  std::vector<std::string> names = runs;
  for (const std::string& run : runs) names.push_back(fs::path(run).filename().string());
  const std::string likely = nearest(name, names);
  if (!likely.empty())
    return fmt::format("did you mean {}?", likely.starts_with("runs/") ? likely : "runs/" + likely);
  if (runs.empty()) return "train one (brrr train), or name a folder with a model";
  constexpr size_t kMost = 3;
  const std::string more = runs.size() > kMost ? ", ..." : "";
  runs.resize(std::min(runs.size(), kMost));
  return fmt::format("there are {}{}", fmt::join(runs, ", "), more);
}

}  // namespace

void write_model_checksum(const fs::path& folder) {
  const FileSum sum = sum_of_file(folder / kModel);
  const Json json{{kModel, {{"bytes", sum.bytes}, {"crc32c", sum.crc32c}}}};
  write_file_atomically(folder / kChecksums, json.dump() + "\n");
}

void remove_model_checksum(const fs::path& folder) {
  std::error_code ignored;
  fs::remove(folder / kChecksums, ignored);
}

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
  user_error("there is no folder {}, and no model of that name in {}: {}", name,
             hub_folder().string(), advice_for(name));
}

models::ModelPtr read_definition(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  return models::parse_config(read_file(path), path.string());
}

ModelFolder open_model(const fs::path& folder, const OpenOptions& options) {
  if (fs::exists(folder / "manifest.json")) open_checkpoint(folder);
  check_model(folder);
  ModelFolder model;
  model.folder = folder;
  model.definition = read_definition(folder);
  if (options.task) model.definition = model.definition->with_task(*options.task);
  model.files = std::make_unique<WeightFiles>(folder);
  model.tensors = match_tensors(*model.files, *model.definition, options.head);
  model.tokenizer = load_tokenizer(folder);
  const int64_t vocabulary = model.definition->sizes().vocabulary;
  if (model.tokenizer->vocab_size() > vocabulary)
    user_error(
        "{}: the tokenizer has {} tokens, the model's vocabulary {}: they do not belong together",
        folder.string(), model.tokenizer->vocab_size(), vocabulary);
  model.generation = read_generation_settings(folder, *model.definition);
  return model;
}

}  // namespace brrr::io
