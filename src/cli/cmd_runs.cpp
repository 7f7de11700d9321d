// brrr runs: which runs there are, how far they came, and what can be done with them.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/human.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "folders/checkpoint.h"
#include "folders/model_folder.h"
#include "train/runs/run_list.h"

namespace brrr::cli {
namespace {

struct RunsOptions {
  bool json = false;
};

const OptionTable<RunsOptions>& runs_table() {
  static const OptionTable<RunsOptions> table = [] {
    OptionTable<RunsOptions> t;
    t.group("runs");
    t.flag("json", &RunsOptions::json, "one JSON object with all runs on standard output");
    return t;
  }();
  return table;
}

struct ListedRun {
  train::RunSummary summary;
  std::string architecture;
  std::optional<int64_t> parameters;
};

/// With the model, as its newest config.json says.
ListedRun listed_run(const train::RunSummary& summary) {
  ListedRun run{summary, summary.architecture, std::nullopt};
  std::vector<fs::path> folders{summary.folder};
  for (const io::Checkpoint& checkpoint : io::list_checkpoints(summary.folder))
    folders.insert(folders.begin() + 1, checkpoint.folder);
  for (const fs::path& folder : folders) {
    std::error_code ignored;
    if (!fs::exists(folder / "config.json", ignored) && !io::holds_adapter(folder)) continue;
    try {
      const models::ModelPtr model = io::read_definition(folder);
      run.architecture = model->architecture().name;
      run.parameters = model->parameter_count();
      break;
    } catch (const UserError&) {  // another file may say it
    }
  }
  return run;
}

std::string model_text(const ListedRun& run) {
  if (!run.parameters) return run.architecture.empty() ? "?" : run.architecture;
  return fmt::format("{} {:.2f}M", run.architecture, static_cast<double>(*run.parameters) / 1e6);
}

void print_table(const std::vector<ListedRun>& runs) {
  std::vector<std::vector<std::string>> rows{
      {"run", "model", "step", "best val. loss", "state", "last written"}};
  for (const ListedRun& run : runs) {
    const train::RunSummary& s = run.summary;
    rows.push_back(
        {fit_for_a_line(s.folder.string()), model_text(run),
         with_commas(s.step) + (s.max_steps > 0 ? " of " + with_commas(s.max_steps) : ""),
         !s.best_val_loss                   ? "-"
         : std::abs(*s.best_val_loss) < 1e6 ? fmt::format("{:.4f}", *s.best_val_loss)
                                            : fmt::format("{:.4g}", *s.best_val_loss),
         std::string(name_of(s.state)), ago(s.age_seconds)});
  }
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i + 1 < row.size(); ++i)
      line += fmt::format("{:<{}}", row[i], widths[i] + 2);
    fmt::print("{}\n", line + row.back());
  }
}

void print_json(const std::vector<ListedRun>& runs) {
  using RunsJson = nlohmann::ordered_json;
  const auto or_null = [](const auto& value) {
    return value ? RunsJson(*value) : RunsJson(nullptr);
  };
  RunsJson list = RunsJson::array();
  for (const ListedRun& run : runs) {
    const train::RunSummary& s = run.summary;
    list.push_back({{"folder", s.folder.string()},
                    {"preset", s.preset},
                    {"architecture", run.architecture},
                    {"parameters", or_null(run.parameters)},
                    {"step", s.step},
                    {"max_steps", s.max_steps},
                    {"best_val_loss", or_null(s.best_val_loss)},
                    {"state", name_of(s.state)},
                    {"fault", s.fault},
                    {"age_seconds", s.age_seconds}});
  }
  fmt::print("{}\n", io::json_line(RunsJson{{"runs", std::move(list)}}));
}

int run_runs(const Arguments& args) {
  RunsOptions options;
  for (const auto& [key, value] : args.given)
    runs_table().set(options, runs_table().find(key), value, "--" + canonical_key(key));
  if (args.positional.size() > 1)
    usage_error("expected one folder; got '{}' and '{}'", args.positional[0], args.positional[1]);
  const fs::path folder = args.positional.empty() ? "runs" : args.positional[0];
  std::error_code ignored;
  if (!args.positional.empty() && !fs::is_directory(folder, ignored))
    user_error("{}: there is no such folder; expected a run, or a folder that holds runs",
               folder.string());
  std::vector<ListedRun> runs;
  for (const train::RunSummary& run : train::list_runs(folder)) runs.push_back(listed_run(run));
  if (options.json) {
    print_json(runs);
    return 0;
  }
  if (runs.empty()) {
    tell("no run in {}; start one: {} train\n", folder.string(), env::program());
    return 0;
  }
  print_table(runs);
  for (const ListedRun& run : runs) {
    const std::string name = run.summary.folder.string();
    if (run.summary.state == train::RunState::unsaved)
      tell(
          "note: {} has no checkpoint to go on from; how to begin it again: {} train --resume {}\n",
          fit_for_a_line(name), env::program(), shell_word(name));
    if (run.summary.state == train::RunState::broken)
      tell("note: {}: {}\n", fit_for_a_line(name), run.summary.fault);
  }
  return 0;
}

}  // namespace

Command runs_command() {
  return {
      .name = "runs",
      .summary = "the runs in a folder: model, steps, best loss, state and age",
      .synopsis = "[FOLDER] [--json]",
      .notes =
          "FOLDER is runs/ where none is named. A run is finished, interrupted (`brrr train\n"
          "--resume FOLDER` goes on with it), running, stopped before its first checkpoint, or\n"
          "broken: its files cannot be used.\n",
      .options = runs_table().infos(),
      .run = run_runs,
      .takes_positional = true};
}

}  // namespace brrr::cli
