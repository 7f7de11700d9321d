#include "infer/open/named_model.h"

#include "base/encoding/ascii.h"
#include "base/tell.h"
#include "folders/adapters/adapter_folder.h"
#include "folders/sentence_folder.h"
#include "folders/state_dict.h"
#include "formats/gguf/gguf_file.h"
#include "infer/model_runnable.h"
#include "modules/open_module.h"
#include "modules/silero/silero.h"

namespace brrr::infer {
namespace {

bool entry_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool has_other_weights(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const fs::path file = entry.path().filename();
    if (file.extension() == ".safetensors" || file == "pytorch_model.bin") return true;
  }
  return entry_exists(folder / "pytorch_model.bin.index.json");
}

}  // namespace

fs::path find_named_model(const std::string& name) {
  return io::find_model(name, [](const std::string& line) { tell("warning: {}\n", line); });
}

io::ModelFolder open_named_model(const std::string& name, const io::OpenOptions& options) {
  return io::open_model(find_named_model(name), options);
}

std::vector<std::string> adapter_titles(const io::ModelFolder& model) {
  std::vector<std::string> titles;
  if (const models::AdaptedModel* const adapted = model.definition->adapted())
    for (const models::Adapter& adapter : adapted->adapters())
      titles.push_back(adapter.weight == 1 ? adapter.title
                                           : fmt::format("{}={:g}", adapter.title, adapter.weight));
  return titles;
}

std::string title_of(const io::ModelFolder& model) {
  const std::vector<std::string> adapters = adapter_titles(model);
  const std::string folder = model.folder.string();
  // The folder of an adapter stands for the model.
  const bool says_it = adapters.size() == 1 && adapters[0] == io::last_part(model.folder);
  return adapters.empty() || says_it ? folder
                                     : fmt::format("{} with {}", folder, fmt::join(adapters, ", "));
}

std::shared_ptr<const io::ModelFolder> open_exchange_model(
    const std::string& name, const std::vector<io::ChosenAdapter>& adapters) {
  const fs::path named = find_named_model(name);
  const auto folder = std::make_shared<const io::ModelFolder>(
      io::merged(io::open_model(named, {.reads_tokenizer = false, .adapters = adapters})));
  if (folder->definition->task().head != models::Head::embedding) return folder;
  const io::SentenceSettings settings = io::read_sentence_settings(folder->folder);
  if (!settings.layers.empty() || settings.table)
    user_error(
        "{}: its vectors are made by modules besides the encoder (Dense, LayerNorm, a table "
        "of token vectors), which run in `embed` alone",
        (folder->folder / "modules.json").string());
  // The encoder is opened by its own folder, which does not say the adapter that was named.
  std::vector<io::ChosenAdapter> all = adapters;
  if (io::holds_adapter(named)) all.insert(all.begin(), {named});
  return std::make_shared<const io::ModelFolder>(io::merged(io::open_model(
      settings.model, {.task = settings.task, .reads_tokenizer = false, .adapters = all})));
}

bool is_module_file(const std::string& word) {
  const std::string ending = ascii_lowercase(fs::path(word).extension().string());
  std::error_code ignored;
  if (modules::is_silero_file(word)) return true;
  return (ending == ".onnx" || ending == ".brrr") && !fs::is_directory(word, ignored);
}

ModuleFiles module_files(const std::string& name) {
  if (is_module_file(name)) {
    const fs::path file(name), beside = file.parent_path();
    const bool is_below = !entry_exists(beside / "tokenizer.json") && beside.filename() == "onnx";
    return {file, is_below ? beside.parent_path() : beside};
  }
  std::error_code ignored;
  const fs::path folder(name);
  if (name.empty() || !fs::is_directory(folder, ignored)) return {};
  if (const fs::path file = modules::silero_file_in(folder); !file.empty()) return {file, folder};
  if (has_other_weights(folder)) return {};
  for (const fs::path& file : {folder / "model.onnx", folder / "onnx" / "model.onnx"})
    if (entry_exists(file)) return {file, folder};
  return {};
}

NamedRunnable open_runnable(const std::string& name, const std::string& device) {
  if (const ModuleFiles files = module_files(name); !files.file.empty())
    return {modules::open_module(files.file), std::nullopt};
  std::error_code ignored;
  if (fs::is_regular_file(name, ignored) && !io::is_gguf_file(name) && !io::is_state_dict(name))
    return {modules::open_module(name), std::nullopt};
  const std::shared_ptr<const io::ModelFolder> folder = open_exchange_model(name);
  return {exchange_runnable(folder->definition, folder->weights),
          own_precision(*folder, machine::backend_for(device))};
}

}  // namespace brrr::infer
