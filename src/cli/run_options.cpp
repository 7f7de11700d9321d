#include "cli/run_options.h"

#include <cstdio>
#include <cstdlib>
#include <set>

#include "base/file.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "folders/model_folder.h"
#include "insight/profile/timed_step.h"
#include "train/options/lora_options.h"
#include "train/parts.h"
#include "train/prepare_run.h"
#include "train/trainer.h"

namespace brrr::cli {
namespace {

// The key of a folder that was named without an option on the command line.
constexpr const char* kFolder = "the folder of a run";

/// The options of `train` in a run's record, overridden by what was given now.
KeyValues with_record(const fs::path& folder, const KeyValues& given) {
  const std::optional<train::TrainOptions> record = recorded_options(folder);
  if (!record) return given;
  const train::TrainOptions& recorded = *record;
  // Options that depend on one that is given now are derived again.
  std::set<std::string> open{
      "architecture",   "config",  "resume",      "overwrite",    "init-from",
      "json",           "text",    "data",        "val-data",     "fit",
      "memory-limit",   "task",    "text-column", "text2-column", "label-column",
      "header",         "quoting", "truncate",    "any-labels",   "metric-for-best-model",
      "label-smoothing"};
  // It needs validation data, and neither the text nor --val-data is taken from the record.
  open.insert("load-best-model-at-end");
  // The folder of a run that trained an adapter holds the adapter.
  open.insert({"lora-r", "lora-alpha", "lora-dropout", "lora-targets", "rslora",
               "lora-modules-to-save", "load-in-4bit", "load-in-8bit", "chat-template"});
  for (const auto& [key, value] : given) {
    const auto& info = train::train_option_table().find(key);
    const std::string& name = info.stands_for.empty() ? info.name : info.stands_for;
    if (name == "learning-rate") open.insert("min-lr");
    if (name == "optim")
      open.insert({"learning-rate", "min-lr", "relative-step", "momentum", "muon-learning-rate"});
    if (name == "fit") open.insert({"rematerialize", "activation-memory"});
  }
  KeyValues all;
  for (const auto& row : train::train_option_table().rows()) {
    if (!row.get || open.contains(row.name) || train::is_model_setting(row.name)) continue;
    for (const std::string& item : row.get(recorded))
      if (!item.empty()) all.emplace_back(row.name, item);
  }
  return train::overlaid(std::move(all), given);
}

/// The model of a folder that is planned for, without opening its weights.
models::ModelPtr definition_of(const fs::path& folder, train::TrainOptions& o) {
  const models::ModelPtr model = io::read_definition(folder);
  if (!o.was_given("context")) o.context = model->sizes().context;
  train::adopt_definition(o, *model, folder.string());
  std::shared_ptr<const WeightList> weights;  // a plan holds the integers of its files
  if (o.lora_r > 0 && io::holds_integers(folder)) weights = io::open_weights(folder, *model);
  return train::with_adapter(o, model->with_dropout(o.dropout), weights.get());
}

/// The model of --init-from, changed as the given options say, as in `train`.
models::ModelPtr definition_to_start_from(const fs::path& folder, train::TrainOptions& o,
                                          const io::OpenOptions& open) {
  const io::ModelFolder model = io::open_model(folder, open);
  train::adopt_architecture(o, model);
  return train::to_start_from(model, o);
}

bool names_a_model(const std::string& key) {
  if (key == kFolder) return false;
  const auto& info = train::train_option_table().find(key);
  return (info.stands_for.empty() ? info.name : info.stands_for) == "init-from";
}

bool names_option(const std::string& key, const std::vector<OptionInfo>& rows) {
  const std::string name = canonical_key(key);
  return std::any_of(rows.begin(), rows.end(), [&](const OptionInfo& row) {
    return row.name == name ||
           std::find(row.aliases.begin(), row.aliases.end(), name) != row.aliases.end();
  });
}

/// Whether the defaults of other options depend on an option.
bool chooses_defaults(const std::string& name) {
  constexpr const char* kNames[] = {"preset", "architecture", "task",
                                    "optim",  "config",       "init-from"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

/// The defaults of all options, given those that choose presets. A file of options that cannot be
/// read is ignored.
train::TrainOptions resolve_for_help(KeyValues heads) {
  try {
    return train::resolve_unchecked(heads);
  } catch (const UserError&) {
    const auto is_file = [](const auto& head) { return canonical_key(head.first) == "config"; };
    if (std::erase_if(heads, is_file) == 0) throw;
    return train::resolve_unchecked(heads);
  }
}

/// Takes context, dropout and sizes from a folder; changes nothing if it cannot be read.
void take_folder_for_help(const std::string& folder, train::TrainOptions& chosen) {
  models::ModelPtr model;
  try {
    model = io::read_definition(io::find_model(folder));
  } catch (const UserError&) {
    return;
  }
  chosen.context = std::min(chosen.context, model->sizes().context);
  chosen.dropout = model->dropout();
  train::adopt_definition(chosen, *model, folder);
}

/// Opens the data as `train` does, for its memory and its vocabulary. Nothing if the default text
/// or tokenizer is missing; data that were named must exist.
std::optional<train::Dataset> open_data(const train::TrainOptions& o, const std::string& folder) {
  try {
    return train::load_dataset(o, folder);
  } catch (const UserError& e) {
    if (!o.text.empty() || !o.data.empty()) throw;
    tell("note: planned without the text and the tokenizer, which are not on this machine\n");
    return std::nullopt;
  }
}

}  // namespace

std::optional<train::TrainOptions> recorded_options(const fs::path& folder) {
  const fs::path record = folder / "train_config.json";
  std::error_code ignored;
  if (!fs::exists(record, ignored)) return std::nullopt;
  try {
    return train::options_from_json(read_file(record), record.string());
  } catch (const UserError& e) {
    tell("note: ignoring the saved options of this run, which another version wrote: {}\n",
         e.what());
    return std::nullopt;
  }
}

Arguments with_model_as_word(Arguments args) {
  std::string model;
  std::erase_if(args.given, [&](const auto& option) {
    if (canonical_key(option.first) != "model") return false;
    if (option.second.empty()) usage_error("--model: expected a value; got an empty one");
    model = option.second;
    return true;
  });
  if (model.empty()) return args;
  if (train::is_options_file(model))
    usage_error("--model: {} is a file of options; name it without --model", model);
  args.positional.push_back(model);
  return args;
}

void add_run_file(const Arguments& args, KeyValues& given) {
  if (args.positional.size() > 1)
    usage_error("expected one file of options or model folder; got '{}' and '{}'",
                args.positional[0], args.positional[1]);
  for (const std::string& word : args.positional)
    given.emplace_back(train::is_options_file(word) ? "config" : kFolder, word);
}

std::vector<OptionInfo> options_for_help(std::vector<OptionInfo> all, const KeyValues& given) {
  const auto& table = train::train_option_table();
  const auto rows = table.infos();
  ::setenv("BRRR_OFFLINE", "1", 1);  // help downloads nothing
  KeyValues heads;
  std::string folder;
  for (const auto& [key, value] : given) {
    if (canonical_key(key) == "model") {
      heads.emplace_back("init-from", value);
      folder = value;
      continue;
    }
    if (!names_option(key, rows)) continue;
    const auto& row = table.find(key);
    const std::string name = row.stands_for.empty() ? row.name : row.stands_for;
    const bool is_head = chooses_defaults(name) && value != "scratch" && value != "resume";
    if (is_head) heads.emplace_back(key, value);
    if (is_head && name == "init-from") folder = value;
  }
  train::TrainOptions chosen = resolve_for_help(heads);
  if (!folder.empty()) take_folder_for_help(folder, chosen);
  std::erase_if(all,
                [&](const OptionInfo& o) { return train::is_foreign_setting(o.name, chosen); });
  const models::Architecture& architecture = models::find_architecture(chosen.architecture);
  for (OptionInfo& o : all) {
    if (!names_option(o.name, rows)) continue;
    // Architectures may share an option and derive its default differently.
    if (const auto* own = architecture.find_option(o.name)) o.help = own->help;
    const auto& row = table.find(o.name);
    if (row.get && row.kind != OptionKind::kList) o.shown_default = row.get(chosen)[0];
  }
  return all;
}

void adopt_folder(train::TrainOptions& options) {
  if (options.init_from == "scratch" || options.wants_resume()) return;
  const fs::path folder = io::find_model(options.init_from);
  const models::ModelPtr known = io::read_definition(folder);
  definition_to_start_from(
      folder, options,
      train::learns_pictures(options)
          ? train::open_for_pictures(train::load_pictures(options, known, folder), *known)
      : !train::learns_labels(options)
          ? train::open_for_text(*known)
          : train::open_for(train::read_task_files(options, known.get(), false), *known));
}

DescribedRun describe_run(const KeyValues& given, WantsData wants) {
  DescribedRun run;
  train::TrainOptions& o = run.options;
  KeyValues options = given;
  const auto alone = std::find_if(options.begin(), options.end(),
                                  [](const auto& option) { return option.first == kFolder; });
  const bool of_folder = alone != options.end();
  for (const auto& [key, value] : given)
    if (of_folder && names_a_model(key))
      usage_error("expected one model; got {} and --init-from {}", alone->second, value);
  if (of_folder) alone->first = "init-from";
  o = train::resolve(options);
  if (o.init_from != "scratch") run.folder = find_named_model(o.init_from);
  if (of_folder) o = train::resolve(with_record(run.folder, options));
  use_threads(o.threads);
  ::setenv("BRRR_OFFLINE", "1", 1);  // plans and profiles download nothing
  if (train::learns_pictures(o) && !of_folder) {
    std::optional<train::TaskPictures> pictures;
    const models::ModelPtr known = run.folder.empty() ? nullptr : io::read_definition(run.folder);
    if (!o.data.empty()) pictures = train::load_pictures(o, known, run.folder);
    if (known)
      run.model = definition_to_start_from(run.folder, o,
                                           pictures ? train::open_for_pictures(*pictures, *known)
                                                    : io::OpenOptions{.reads_tokenizer = false});
    if (pictures) run.data = train::picture_dataset(*std::move(pictures));
    if (!known)
      run.model = run.data ? train::new_model(o, *run.data) : train::model_of(o, o.vocab_size);
    run.model = train::with_loss_of(o, run.model);
    return run;
  }
  if (train::learns_labels(o) && !of_folder) {
    const models::ModelPtr known = run.folder.empty() ? nullptr : io::read_definition(run.folder);
    auto files = train::read_task_files(o, known.get(), false);
    if (known) run.model = definition_to_start_from(run.folder, o, train::open_for(files, *known));
    run.data = train::task_dataset(o, std::move(files), run.folder.string());
    train::shorten_context(o, *run.data);
    if (!known) run.model = train::new_model(o, *run.data);
    return run;
  }
  if (!run.folder.empty())
    run.model = of_folder
                    ? definition_of(run.folder, o)
                    : definition_to_start_from(
                          run.folder, o, train::open_for_text(*io::read_definition(run.folder)));
  // The data of a model with labels are known to its own run only.
  const bool reads_text = run.model == nullptr || run.model->task().labels.empty();
  if (reads_text && (wants == WantsData::if_there || !o.text.empty() || !o.data.empty()))
    run.data = open_data(o, run.folder.string());
  if (run.data) train::shorten_context(o, *run.data);
  if (run.folder.empty()) {
    const auto learnt = train::learnt_tokenizer(o.tokenizer);
    run.model = train::model_of(o, run.data           ? run.data->tokenizer->vocab_size()
                                   : o.vocab_size > 0 ? o.vocab_size
                                   : learnt           ? learnt->entries
                                                      : insight::kCharacters);
  }
  return run;
}

train::ProcessInputs DescribedRun::inputs() const {
  return train::inputs_of(options, data ? &*data : nullptr, model->sizes().vocabulary);
}

}  // namespace brrr::cli
