#include "infer/open/open_embedder.h"

#include <utility>

#include "backend/cpu/target.h"
#include "base/memory.h"
#include "base/tell.h"
#include "folders/adapters/adapter_folder.h"
#include "infer/encoder.h"
#include "infer/layered_embedder.h"
#include "infer/open/kept_texts.h"
#include "infer/open/named_model.h"
#include "infer/table_embedder.h"
#include "modules/open_module.h"

namespace brrr::infer {
namespace {

constexpr int64_t kUsualContext = 512;                 // of an encoder whose files do not say
constexpr int64_t kLongestOfTable = int64_t{1} << 24;  // tokens of a text without an encoder

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// How the options want vectors to be made, besides what a folder says.
io::SentenceSettings settings_by(io::SentenceSettings settings, const EmbedOptions& options) {
  for (const auto& [name, pooling] : models::poolings())
    if (name == options.pooling) settings.task.pooling = {pooling};
  if (!options.normalize) settings.keep_lengths();
  return settings;
}

io::SentenceSettings settings_of(const fs::path& folder, const EmbedOptions& options) {
  if (!io::holds_adapter(folder)) return settings_by(io::read_sentence_settings(folder), options);
  io::SentenceSettings settings =
      settings_by(io::read_sentence_settings(io::base_folder(folder)), options);
  settings.model = folder;
  return settings;
}

/// The most tokens that a file takes of a text, where it says so.
std::optional<int64_t> longest_of(const Runnable& runnable) {
  for (const Port& port : runnable.inputs())
    for (const PortDim& dim : port.dims)
      if (dim.most > 0) return dim.most;
  return std::nullopt;
}

/// How many tokens of a text are those of its prompt.
int64_t prompt_tokens(const io::Tokenizer& tokenizer, const std::string& prompt) {
  if (prompt.empty()) return 0;
  const std::vector<int32_t> ids = tokenizer.model_input(prompt).ids;
  return std::ssize(ids) - (!ids.empty() && tokenizer.is_special(ids.back()) ? 1 : 0);
}

/// Leaves the prompt's tokens out of pooling, where the folder wants that.
void leave_prompt_out(OpenEmbedder& open, const EmbedOptions& options, TextRole role) {
  if (open.settings.pools_prompt) return;
  open.settings.task.prompt_tokens =
      prompt_tokens(*open.tokenizer, prompt_of(open.settings, options, role));
}

/// The modules behind the pooling.
void add_layers(OpenEmbedder& open) {
  if (open.settings.layers.empty()) return;
  open.vectors = std::make_unique<LayeredEmbedder>(std::move(open.vectors), open.settings.layers,
                                                   cpu::cpu_backend());
}

OpenEmbedder open_table(io::SentenceSettings settings, const EmbedOptions& options) {
  const io::SentenceTable& table = *settings.table;
  const std::string name = table.folder.string();
  if (options.device == "cuda")
    usage_error("--device cuda: {} runs on the CPU alone; leave --device out", name);
  if (options.precision != Precision::fp32)
    usage_error("--precision {}: the table of {} is read as fp32; leave --precision out",
                options.precision, name);
  const bool is_static = table.kind == io::SentenceTable::Kind::static_embedding;
  if (is_static && !options.pooling.empty())
    usage_error("--pooling: {} is the mean of token vectors; leave --pooling out", name);
  OpenEmbedder open;
  open.path = table.folder;
  open.own_tokenizer = io::open_tokenizer(table.folder);
  open.tokenizer = open.own_tokenizer.get();
  open.form = is_static ? TextForm::without_special_tokens : TextForm::cut_at_end;
  open.context = kLongestOfTable;
  // tokenizer.json's own truncation holds for StaticEmbedding, which has no other.
  if (const auto longest = open.tokenizer->input_lengths().longest; is_static && longest)
    settings.longest = static_cast<int64_t>(*longest);
  auto vectors = std::make_unique<TableEmbedder>(table, settings.task);
  if (open.tokenizer->vocab_size() > vectors->vocabulary())
    user_error("{}: the tokenizer has {} tokens, and the table {}", name,
               open.tokenizer->vocab_size(), vectors->vocabulary());
  const MemoryLimit limit = memory_of(options, "a smaller table").limit;
  if (const int64_t taken = resident_memory().needed(); limit.bytes > 0 && taken > limit.bytes)
    throw UserError(fmt::format("the table does not fit in memory: the process takes {}, and {} "
                                "is {}",
                                memory_text(taken), limit.source, memory_text(limit.bytes)),
                    ExitCode::kNoMemory);
  open.vectors = std::move(vectors);
  open.settings = std::move(settings);
  add_layers(open);
  return open;
}

void check_case(const io::SentenceSettings& settings, const fs::path& folder,
                const io::Tokenizer& tokenizer) {
  if (settings.lowercase && tokenizer.encode("A") != tokenizer.encode("a"))
    user_error(
        "{}: do_lower_case = true is not supported with a case-sensitive tokenizer; expected false",
        (folder / "sentence_bert_config.json").string());
}

void say_pooling(const io::SentenceSettings& settings, const fs::path& folder,
                 const EmbedOptions& options) {
  if (!settings.is_said && options.pooling.empty())
    tell("note: {} does not say how to pool token vectors: using their mean (see --pooling)\n",
         folder.string());
}

OpenEmbedder open_module_embedder(const ModuleFiles& files, const EmbedOptions& options,
                                  TextRole role, Communicator* communicator) {
  OpenEmbedder open;
  open.path = files.file;
  const fs::path folder = files.folder.empty() ? fs::path(".") : files.folder;
  const std::shared_ptr<const Runnable> runnable = modules::open_module(files.file);
  open.own_tokenizer = kept_texts(*runnable).tokenizer;  // of a .brrr file
  // A .brrr file says everything itself, whatever lies beside it.
  const bool is_alone = open.own_tokenizer != nullptr;
  if (!is_alone && !is_there(folder / "tokenizer.json"))
    user_error("{}: expected tokenizer.json beside it; there is none in {}", files.file.string(),
               folder.string());
  if (!is_alone) open.own_tokenizer = io::open_tokenizer(folder / "tokenizer.json");
  open.settings =
      is_alone ? settings_by(io::SentenceSettings(), options) : settings_of(folder, options);
  open.tokenizer = open.own_tokenizer.get();
  open.tokenizer->prepare(1);  // before the memory of this process is measured
  check_case(open.settings, folder, *open.tokenizer);
  leave_prompt_out(open, options, role);
  const std::optional<int64_t> context =
      is_alone ? longest_of(*runnable) : io::read_context(folder);
  const EncoderTask task{
      .name = files.file.string(),
      .task = open.settings.task,
      .context = context.value_or(std::max(kUsualContext, open.settings.longest.value_or(0)))};
  auto vectors = std::make_unique<Encoder>(
      runnable, machine::backend_for(options.device), task,
      EncoderOptions{.precision = dtype_of_precision(options.precision),
                     .quantization = quantization_of_precision(options.precision),
                     .batch_size = options.batch_size,
                     .batch_tokens = options.batch_tokens,
                     .memory = memory_of(options, "a smaller --max-length"),
                     .beside = bytes_of_texts(options, 0),
                     .communicator = communicator});
  open.context = vectors->context();
  if (vectors->is_pooled() && !options.pooling.empty())
    usage_error("--pooling: {} gives whole vectors, which are not pooled again",
                files.file.string());
  if (vectors->is_pooled() && is_alone && !options.normalize)
    tell("note: --no-normalize changes nothing: {} gives whole vectors, as they were exported\n",
         files.file.string());
  if (!vectors->is_pooled()) say_pooling(open.settings, folder, options);
  open.vectors = std::move(vectors);
  add_layers(open);
  return open;
}

}  // namespace

std::string prompt_of(const io::SentenceSettings& settings, const EmbedOptions& options,
                      TextRole role) {
  // As sentence-transformers' encode_query() and encode_document() choose them.
  std::vector<std::string> names;
  if (!options.similarity.empty() && role == TextRole::query) names = {"query"};
  if (!options.similarity.empty() && role == TextRole::document)
    names = {"document", "passage", "corpus"};
  if (role == TextRole::document && !options.prompt_name.empty()) names = {options.prompt_name};
  for (const std::string& name : names)
    if (const auto at = settings.prompts.find(name); at != settings.prompts.end())
      return at->second;
  if (role == TextRole::query || options.prompt_name.empty()) return settings.prompt;
  std::string known;
  for (const auto& [name, prompt] : settings.prompts) known += (known.empty() ? "" : ", ") + name;
  usage_error("--prompt-name {}: {} has no prompt of that name; it has {}", options.prompt_name,
              settings.model.string(), known.empty() ? "none" : known);
}

OpenEmbedder open_embedder(const EmbedOptions& options, TextRole role, Communicator* communicator) {
  if (const ModuleFiles files = module_files(options.model); !files.file.empty())
    return open_module_embedder(files, options, role, communicator);
  OpenEmbedder open;
  // Older folders of sentence-transformers have the encoder in a folder of its own.
  const bool has_modules = is_there(fs::path(options.model) / "modules.json");
  const fs::path folder = has_modules ? fs::path(options.model) : find_named_model(options.model);
  open.settings = settings_of(folder, options);
  if (open.settings.table) return open_table(std::move(open.settings), options);
  open.folder = std::make_unique<io::ModelFolder>(io::open_model(
      open.settings.model,
      {.task = open.settings.task, .adapters = io::parse_adapters(options.adapter)}));
  open.path = open.folder->folder;
  open.tokenizer = open.folder->tokenizer.get();
  leave_prompt_out(open, options, role);
  open.folder->definition = open.folder->definition->with_task(open.settings.task);
  open.context = open.folder->definition->sizes().context;
  check_case(open.settings, folder, *open.tokenizer);
  say_pooling(open.settings, folder, options);
  open.vectors = std::unique_ptr<Embedder>(
      new Encoder(encoder_of(*open.folder, options, communicator)));  // it cannot be moved
  add_layers(open);
  return open;
}

}  // namespace brrr::infer
