#pragma once
// A training run that is looked at, not started (`brrr plan`, `brrr profile`): its options from the
// command line, a TOML file or a folder, the configuration of its model, its data.

#include <algorithm>
#include <optional>

#include "base/file.h"
#include "base/options.h"
#include "models/model.h"
#include "train/dataset.h"
#include "train/process_forecast.h"

namespace brrr::cli {

/// The options that a run recorded in its folder or in that of a checkpoint. Nothing, with a note
/// to the user, for those that another version wrote; nothing for a folder without a record.
std::optional<train::TrainOptions> recorded_options(const fs::path& folder);

struct DescribedRun {
  train::TrainOptions options;
  fs::path folder;  // of the model that it starts from, or empty
  std::optional<train::Dataset> data;
  models::ModelPtr model;

  train::ProcessInputs inputs() const;
};

enum class WantsData {
  if_there,  // what `train` would read, when it is on this machine
  if_named   // by --text or --data
};
/// Resolves the options, sets the threads, opens the data. No weight is read, nothing downloaded.
DescribedRun describe_run(const KeyValues& given, WantsData wants);

/// With --init-from: takes over from the folder what `train` takes over.
void adopt_folder(train::TrainOptions& options);

/// The row --model of `brrr plan` and `brrr profile`, for every kind of model that other verbs
/// take.
template <typename T>
void add_model_row(OptionTable<T>& t, std::string T::*model) {
  t.text(
      "model", model, "FOLDER",
      "run, checkpoint or model folder, ORG/NAME of the Hugging Face Hub, or GGUF, ONNX or .brrr "
      "file (the same as FOLDER without --model)");
}
/// The arguments with the value of --model as a word that stands alone. Throws UserError (exit 2)
/// for a second model.
Arguments with_model_as_word(Arguments args);

/// A TOML file or a model folder that stands alone on the command line.
void add_run_file(const Arguments& args, KeyValues& given);

/// For --help: the options of the architecture that --preset, --architecture or --init-from names,
/// without those of others; their defaults are the preset's.
std::vector<OptionInfo> options_for_help(std::vector<OptionInfo> all, const KeyValues& given);

/// What was given besides the options of `table`, which go to `own`.
template <typename T>
KeyValues options_of_run(const Arguments& args, const OptionTable<T>& table, T& own) {
  KeyValues given;
  for (const auto& [key, value] : args.given) {
    const std::string name = canonical_key(key);
    const auto& rows = table.rows();
    if (std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.name == name; }))
      table.set(own, table.find(key), value, "--" + name);
    else
      given.emplace_back(key, value);
  }
  add_run_file(args, given);
  return given;
}

}  // namespace brrr::cli
