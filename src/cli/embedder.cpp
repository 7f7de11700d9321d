#include "cli/embedder.h"

#include "backend/cpu/target.h"
#include "base/tell.h"
#include "cli/encoder_texts.h"
#include "cli/model_option.h"
#include "cli/module_option.h"
#include "infer/encoder.h"
#include "infer/module_embedder.h"

namespace brrr::cli {
namespace {

constexpr int64_t kUsualContext = 512;  // of an encoder whose files do not say

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool has_other_weights(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const fs::path file = entry.path().filename();
    if (file.extension() == ".safetensors" || file == "pytorch_model.bin") return true;
  }
  return is_there(folder / "pytorch_model.bin.index.json");
}

/// The ONNX file that is meant, and the folder that says how to use it; "" where none is.
struct ModuleFiles {
  fs::path file, folder;
};

ModuleFiles module_files(const std::string& name) {
  if (is_module_file(name)) {
    const fs::path file(name), beside = file.parent_path();
    const bool is_below = !is_there(beside / "tokenizer.json") && beside.filename() == "onnx";
    return {file, is_below ? beside.parent_path() : beside};
  }
  std::error_code ignored;
  const fs::path folder(name);
  if (name.empty() || !fs::is_directory(folder, ignored) || has_other_weights(folder)) return {};
  for (const fs::path& file : {folder / "model.onnx", folder / "onnx" / "model.onnx"})
    if (is_there(file)) return {file, folder};
  return {};
}

/// How the folder and the options want vectors to be made.
io::SentenceSettings settings_of(const fs::path& folder, const infer::EmbedOptions& options) {
  io::SentenceSettings settings = io::read_sentence_settings(folder);
  for (const auto& [name, pooling] : models::poolings())
    if (name == options.pooling) settings.task.pooling = {pooling};
  if (!options.normalize) settings.task.normalize = false;
  return settings;
}

void check_case(const io::SentenceSettings& settings, const fs::path& folder,
                const io::Tokenizer& tokenizer) {
  if (settings.lowercase && tokenizer.encode("A") != tokenizer.encode("a"))
    user_error(
        "{}: do_lower_case = true is not supported with a case-sensitive tokenizer; expected false",
        (folder / "sentence_bert_config.json").string());
}

void say_pooling(const io::SentenceSettings& settings, const fs::path& folder,
                 const infer::EmbedOptions& options) {
  if (!settings.is_said && options.pooling.empty())
    tell("note: {} does not say how to pool token vectors: using their mean (see --pooling)\n",
         folder.string());
}

OpenEmbedder open_module_embedder(const ModuleFiles& files, const infer::EmbedOptions& options) {
  if (options.device == "cuda")
    usage_error("--device cuda: {} runs on the CPU alone; leave --device out", files.file.string());
  OpenEmbedder open;
  open.path = files.file;
  const fs::path folder = files.folder.empty() ? fs::path(".") : files.folder;
  const auto module = modules::open_module(files.file);
  if (!is_there(folder / "tokenizer.json"))
    user_error("{}: expected tokenizer.json beside it; there is none in {}", files.file.string(),
               folder.string());
  open.settings = settings_of(folder, options);
  open.own_tokenizer = io::open_tokenizer(folder / "tokenizer.json");
  open.tokenizer = open.own_tokenizer.get();
  open.tokenizer->prepare(1);  // before the memory of this process is measured
  check_case(open.settings, folder, *open.tokenizer);
  infer::ModuleEmbedderOptions o;
  o.name = files.file.string();
  o.task = open.settings.task;
  const std::optional<int64_t> context = io::read_context(folder);
  o.context = context.value_or(std::max(kUsualContext, open.settings.longest.value_or(0)));
  o.batch_size = options.batch_size;
  o.how.precision = dtype_of_precision(options.precision);
  infer::TextsOptions on_cpu = options;
  on_cpu.device = "cpu";
  o.memory = memory_of(on_cpu, "a smaller --max-length");
  o.beside = bytes_of_texts(options, 0);
  auto vectors = std::make_unique<infer::ModuleEmbedder>(module, cpu::cpu_backend(), o);
  open.context = vectors->context();
  if (vectors->is_pooled() && !options.pooling.empty())
    usage_error("--pooling: {} gives whole vectors, which are not pooled again",
                files.file.string());
  if (!vectors->is_pooled()) say_pooling(open.settings, folder, options);
  open.vectors = std::move(vectors);
  return open;
}

}  // namespace

OpenEmbedder open_embedder(const infer::EmbedOptions& options) {
  if (const ModuleFiles files = module_files(options.model); !files.file.empty())
    return open_module_embedder(files, options);
  OpenEmbedder open;
  // Older folders of sentence-transformers have the encoder in a folder of its own.
  const bool has_modules = is_there(fs::path(options.model) / "modules.json");
  const fs::path folder = has_modules ? fs::path(options.model) : find_named_model(options.model);
  open.settings = settings_of(folder, options);
  open.folder = std::make_unique<io::ModelFolder>(
      io::open_model(open.settings.model, {.task = open.settings.task}));
  open.path = open.folder->folder;
  open.tokenizer = open.folder->tokenizer.get();
  open.context = open.folder->definition->sizes().context;
  check_case(open.settings, folder, *open.tokenizer);
  say_pooling(open.settings, folder, options);
  open.vectors = std::unique_ptr<infer::Embedder>(
      new infer::Encoder(encoder_of(*open.folder, options)));  // an Encoder cannot be moved
  return open;
}

}  // namespace brrr::cli
