// The command that begins a run anew, from the record of its options.

#include <algorithm>

#include "base/human.h"
#include "train/options.h"

namespace brrr::train {
namespace {

using Row = OptionTable<TrainOptions>::Row;

struct Given {
  const Row* row;
  std::vector<std::string> items;
};

/// What resolve() makes of the options, or nothing where it refuses them.
std::optional<TrainOptions> resolved(const std::vector<Given>& options) {
  KeyValues given;
  for (const Given& option : options)
    for (const std::string& item : option.items) given.emplace_back(option.row->name, item);
  try {
    return resolve(given);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

bool gives_all(const std::vector<Given>& options, const std::vector<Given>& all) {
  const auto made = resolved(options);
  return made && std::ranges::all_of(all, [&](const Given& wanted) {
           return wanted.row->get(*made) == wanted.items;
         });
}

std::string as_typed(const Given& option) {
  const std::string& name = option.row->name;
  if (option.row->kind == OptionKind::kFlag)
    return (option.items[0] == "true" ? " --" : " --no-") + name;
  std::string text = " --" + name;
  for (const std::string& item : option.items) text += " " + shell_word(item);
  return text;
}

}  // namespace

std::string command_to_begin_again(const TrainOptions& recorded, const std::string& run) {
  // A model that the run started from brings its settings.
  const bool has_model = recorded.init_from != "scratch";
  std::vector<Given> all;
  for (const Row& row : train_option_table().rows()) {
    if (!row.get || is_per_call(row.name) || row.name == "output-dir") continue;
    if (is_foreign_setting(row.name, recorded)) continue;
    if (has_model && (is_model_setting(row.name) || row.name == "architecture")) continue;
    if (const auto items = row.get(recorded); !items.empty() && !items[0].empty())
      all.push_back({&row, items});
  }
  // What the others imply is left out: the preset goes last, because it implies the most.
  std::vector<Given> needed = all;
  std::vector<std::string> names;
  for (const Given& option : all) names.push_back(option.row->name);
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) {
    return name != "preset" && name != "task" && name != "init-from" && name != "optim";
  });
  for (const std::string& name : names) {
    std::vector<Given> fewer = needed;
    std::erase_if(fewer, [&](const Given& option) { return option.row->name == name; });
    if (gives_all(fewer, all)) needed = std::move(fewer);
  }
  std::string command = "brrr train";
  for (const Given& option : needed) command += as_typed(option);
  return command + " --output-dir " + shell_word(run) + " --overwrite";
}

}  // namespace brrr::train
