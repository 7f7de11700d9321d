// brrr merge: a model and its adapters as one plain model.

#include <map>
#include <vector>

#include "base/env.h"
#include "base/human.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/export_gguf.h"
#include "cli/model_option.h"
#include "folders/adapters/adapter_folder.h"
#include "folders/quantized/folder_files.h"
#include "formats/gguf/gguf_file.h"

namespace brrr::cli {
namespace {

struct MergeOptions {
  std::string model;
  std::vector<std::string> adapter;
  std::string output;
  std::string type;  // of a GGUF file
  int64_t threads = 0;
};

const OptionTable<MergeOptions>& merge_table() {
  static const OptionTable<MergeOptions> table = [] {
    using O = MergeOptions;
    OptionTable<O> t;
    t.group("merge");
    t.text("model", &O::model, "MODEL",
           "model folder, GGUF file or ORG/NAME of the Hugging Face Hub; or the folder of an "
           "adapter, which names its base");
    t.repeated("adapter", &O::adapter, false, "FOLDER[=SCALE]",
               "low-rank adapter to merge, as `brrr train --lora-r` or PEFT writes it, with an "
               "optional factor of its scale (below 0: subtract it); give the option once for each "
               "adapter: their changes are added",
               {"lora", "peft"});
    t.text("output", &O::output, "FOLDER", "the folder to write, or a file that ends in .gguf");
    t.text("type", &O::type, "TYPE",
           "what matrices of a GGUF file are stored in: " + gguf_types_text());
    t.integer("threads", &O::threads, 0, kMostThreads, "N", "threads (0: all)", {"num-threads"});
    return t;
  }();
  return table;
}

MergeOptions merge_options(const Arguments& args) {
  MergeOptions o;
  for (const auto& [key, value] : with_words(args, AlsoReads::nothing))
    merge_table().set(o, merge_table().find(key), value, "--" + canonical_key(key));
  if (o.output.empty()) usage_error("expected --output FOLDER, the place of the merged model");
  if (!o.type.empty() && !o.output.ends_with(".gguf"))
    usage_error("--type works only with GGUF files; --output {} is a folder", o.output);
  std::error_code ignored;
  if (!o.output.ends_with(".gguf") && fs::exists(o.output, ignored) &&
      !(fs::is_directory(o.output, ignored) && fs::is_empty(o.output, ignored)))
    usage_error("--output: {} holds files already; expected a new or an empty folder", o.output);
  return o;
}

/// The dtype that the base stores the parameter in: integers become f32.
DType stored_dtype(const WeightSource& before, const std::string& name) {
  const TensorView* const tensor = before.find(name);
  const bool is_stored = tensor != nullptr && !tensor->bytes.empty() && tensor->storage.is_plain();
  return is_stored ? tensor->dtype : DType::f32;
}

/// `adapters`: those of the command line.
void write_folder(const io::ModelFolder& model, const WeightSource& before, const fs::path& base,
                  const std::vector<io::ChosenAdapter>& adapters, const fs::path& to) {
  create_folder(to);
  std::vector<TensorView> views;
  for (const models::ParameterInfo& p : model.definition->parameters())
    views.push_back({p.name, stored_dtype(before, p.name), p.shape, {}});
  std::vector<std::byte> room;
  io::write_model_files(to, *model.definition, views, [&](const TensorView& view) {
    room.resize(static_cast<size_t>(view.shape.elements()) * bytes_of(view.dtype));
    const TensorView& tensor = *model.weights->find(view.name);
    if (is_float(view.dtype))
      read_as(*model.weights, tensor, view.dtype, room);
    else
      model.weights->read(tensor, room);
    return std::span<const std::byte>(room);
  });
  if (io::is_gguf_file(base))
    io::load_tokenizer(base)->save(to);
  else
    io::copy_texts(base, to);
  // The adapter's own, where it has one.
  if (!io::is_gguf_file(model.folder)) io::copy_texts(model.folder, to);
  // One adapter answers in the form that it was trained with.
  constexpr const char* kTemplate = "chat_template.jinja";
  std::error_code ignored;
  if (adapters.size() == 1 && fs::exists(adapters[0].folder / kTemplate, ignored))
    write_file_atomically(to / kTemplate, read_file(adapters[0].folder / kTemplate));
  io::write_model_checksums(to);
}

int run_merge(const Arguments& args) {
  const MergeOptions o = merge_options(args);
  use_threads(o.threads);
  if (o.output.ends_with(".gguf")) return export_gguf(o.model, o.adapter, o.type, o.output);
  const fs::path folder = find_named_model(o.model);
  const io::OpenOptions open{.reads_tokenizer = false, .adapters = io::parse_adapters(o.adapter)};
  io::ModelFolder adapted = io::open_model(folder, open);
  const models::AdaptedModel* const with = adapted.definition->adapted();
  if (with == nullptr)
    usage_error("{} has no adapter: name one by --adapter FOLDER", folder.string());
  size_t layers = 0;
  for (const models::Adapter& adapter : with->adapters()) layers += adapter.layers.size();
  const auto adapters = std::ssize(with->adapters());
  const std::shared_ptr<const WeightList> before = adapted.weights;
  const fs::path base = io::holds_adapter(folder) ? io::base_folder(folder) : folder;
  write_folder(io::merged(std::move(adapted)), *before, base, open.adapters, o.output);
  tell("wrote {}: {} on {} merged into {}; try: {} info {}\n", o.output,
       counted(adapters, "adapter"), counted(static_cast<int64_t>(layers), "linear layer"),
       base.string(), env::program(), shell_word(o.output));
  return 0;
}

}  // namespace

Command merge_command() {
  return {
      .name = "merge",
      .summary = "a model and its adapters (LoRA) as one plain model",
      .synopsis = "MODEL [--adapter FOLDER[=SCALE]]... --output FOLDER|FILE.gguf",
      .notes =
          "Adds each adapter to the weights that it adapts, which then have the dtype that they\n"
          "had; weights in integers become fp32. The folder needs neither the adapter nor Brrr.\n",
      .options = merge_table().infos(),
      .run = run_merge,
      .takes_positional = true,
      .works_unread = true,
      .is_for_one_process = true};
}

}  // namespace brrr::cli
