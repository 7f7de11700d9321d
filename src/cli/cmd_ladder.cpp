// brrr ladder: the optimisation tables of the literature, measured again on this machine.

#include <algorithm>

#include "base/file.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "insight/ladder.h"
#include "train/fit.h"
#include "train/progress.h"

namespace brrr::cli {
namespace {

struct LadderFlags {
  std::string output_dir = "ladder";
  int64_t rounds = 3;
  std::string html;
  bool quick = false;
  bool again = false;
  bool json = false;
};

const OptionTable<LadderFlags>& ladder_table() {
  static const OptionTable<LadderFlags> table = [] {
    OptionTable<LadderFlags> t;
    t.group("ladder");
    t.integer("rounds", &LadderFlags::rounds, 1, 1000, "N",
              "visits to each rung; medians and quartiles are over them");
    t.text("output-dir", &LadderFlags::output_dir, "DIR",
           "folder of ladder.json: what stands there is not measured again");
    t.text("html", &LadderFlags::html, "FILE", "bars and tables as one page");
    t.flag("quick", &LadderFlags::quick, "smaller models: the same comparison in a few minutes");
    t.flag("again", &LadderFlags::again, "measure everything again");
    t.flag("json", &LadderFlags::json, "one JSON object for each ladder on standard output");
    return t;
  }();
  return table;
}

std::string names() {
  std::string list;
  for (const insight::Ladder& l : insight::ladders()) list += (list.empty() ? "" : ", ") + l.name;
  return list;
}

const insight::Ladder& find(const std::string& name) {
  for (const insight::Ladder& l : insight::ladders())
    if (l.name == name) return l;
  usage_error("there is no ladder '{}'; there are {}", name, names());
}

int run_ladder(const Arguments& args) {
  LadderFlags flags;
  insight::LadderOptions options;
  KeyValues user;  // options of `train`
  const std::vector<OptionInfo> own = ladder_table().infos();
  for (const auto& [key, value] : args.given) {
    const std::string name = canonical_key(key);
    if (std::any_of(own.begin(), own.end(), [&](const auto& i) { return i.name == name; }))
      ladder_table().set(flags, ladder_table().find(key), value, "--" + name);
    else
      user.emplace_back(key, value);
  }
  std::vector<const insight::Ladder*> chosen;
  for (const std::string& name : args.positional) chosen.push_back(&find(name));
  if (chosen.empty()) chosen.push_back(&insight::ladders().front());
  const train::TrainOptions checked = train::resolve(user);  // wrong options show before hours
  use_threads(checked.threads);

  options.rounds = static_cast<int>(flags.rounds);
  options.memory_limit = train::memory_budget(checked).bytes;
  std::error_code ignored;
  std::filesystem::create_directories(flags.output_dir, ignored);
  options.record = std::filesystem::path(flags.output_dir) / "ladder.json";
  if (flags.again) std::filesystem::remove(options.record, ignored);
  std::vector<insight::ClimbedLadder> climbed;
  for (const insight::Ladder* ladder : chosen) {
    train::Progress progress({.label = "rung",
                              .total = static_cast<int64_t>(ladder->rungs.size()) * flags.rounds,
                              .plain_interval_seconds = 30});
    KeyValues changes = flags.quick ? ladder->quick : KeyValues{};
    changes.insert(changes.end(), user.begin(), user.end());
    options.options = changes;
    options.progress = [&](int64_t done) { progress.update(done); };
    climbed.push_back({ladder, insight::climb(*ladder, options)});
    progress.finish();
    const auto& results = climbed.back().results;
    if (flags.json)
      fmt::print("{}\n", insight::ladder_json(*ladder, results));
    else
      fmt::print("{}\n", insight::ladder_table(*ladder, results));
    if (!flags.html.empty()) write_file_atomically(flags.html, insight::ladder_page(climbed));
  }
  return 0;
}

}  // namespace

Command ladder_command() {
  std::vector<OptionInfo> options = ladder_table().infos();
  const std::vector<OptionInfo> more = train::train_option_table().infos();
  for (const OptionInfo& i : more)
    if (i.name != "output-dir" && i.name != "json") options.push_back(i);
  return {.name = "ladder",
          .summary = "optimisation tables of the literature, measured again on this machine",
          .synopsis = "[LADDER...] [options, also any of train]",
          .notes = "Ladders: " + names() +
                   " (default: the first). A rung's training step is timed on random tokens,\n"
                   "round after round, each time in a session of its own. What was measured is\n"
                   "kept in the output folder, so a ladder that was interrupted goes on.\n",
          .options = std::move(options),
          .run = run_ladder,
          .takes_positional = true};
}

}  // namespace brrr::cli
