// brrr info: what this machine is and what it reaches; what a model's folder holds.

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "cli/commands.h"
#include "cli/quantize/folder_info.h"
#include "insight/machine/machine.h"

namespace brrr::cli {
namespace {

struct InfoOptions {
  bool json = false;
  bool env = false;
  bool measure = true;
};

const OptionTable<InfoOptions>& info_table() {
  static const OptionTable<InfoOptions> table = [] {
    OptionTable<InfoOptions> t;
    t.group("options");
    t.flag("json", &InfoOptions::json, "one JSON object on standard output");
    t.flag("env", &InfoOptions::env, "list the environment variables that Brrr reads, and exit");
    t.flag("measure", &InfoOptions::measure, "measure peaks and bandwidth (about 2 s)");
    return t;
  }();
  return table;
}

void print_environment(bool json) {
  if (json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const env::Variable& v : env::all()) {
      const auto value = env::get(v.name);
      all.push_back({{"name", v.name},
                     {"meaning", v.meaning},
                     {"value", value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json()}});
    }
    fmt::print("{}\n", io::json_line(nlohmann::ordered_json{{"environment", all}}));
    return;
  }
  for (const env::Variable& v : env::all()) {
    const auto value = env::get(v.name);
    fmt::print("{:<16} {}{}\n", v.name, v.meaning, value ? " [" + *value + "]" : "");
  }
}

int run_info(const Arguments& args) {
  InfoOptions options;
  for (const auto& [key, value] : args.given)
    info_table().set(options, info_table().find(key), value, "--" + canonical_key(key));
  if (args.positional.size() > 1)
    usage_error("expected one model folder; got {} words", args.positional.size());
  if (!args.positional.empty()) {
    if (options.env) usage_error("--env lists variables and looks at no model; leave one out");
    print_folder_info(args.positional[0], options.json);
    return 0;
  }
  if (options.env) {
    print_environment(options.json);
    return 0;
  }
  const insight::Machine machine = insight::read_machine();
  const insight::Gpus gpus = insight::find_gpus();
  std::optional<insight::Peaks> peaks;
  if (options.measure) peaks = insight::measure_peaks(machine);
  if (options.json)
    fmt::print("{}\n", insight::report_json(machine, gpus, peaks));
  else
    fmt::print("{}", insight::report(machine, gpus, peaks, colour_on_stdout()));
  return 0;
}

}  // namespace

Command info_command() {
  return {.name = "info",
          .summary = "describe this machine, its memory and measured peaks; or a model folder",
          .synopsis = "[FOLDER or FILE.gguf] [--json] [--env] [--no-measure]",
          .notes =
              "With FOLDER or FILE.gguf: the sizes of its model, and how its weights are stored or "
              "quantised.\n",
          .options = info_table().infos(),
          .run = run_info,
          .takes_positional = true};
}

}  // namespace brrr::cli
