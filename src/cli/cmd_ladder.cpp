// brrr ladder: the optimisation tables of the literature, measured again on this machine.

#include <algorithm>

#include "base/file.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "insight/ladder.h"
#include "io/folder_lock.h"
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
    t.flag("again", &LadderFlags::again, "measure these ladders again");
    t.flag("json", &LadderFlags::json, "one JSON object with all of them on standard output");
    return t;
  }();
  return table;
}

/// Whether an option of `train` concerns only the run that it keeps: its folder, its evaluations,
/// its log, what it prints. None of them changes what a step costs.
bool is_of_a_run(const OptionInfo& given) {
  const OptionInfo& info =
      given.stands_for.empty() ? given : train::train_option_table().find(given.stands_for);
  return info.group == "run" || info.group == "evaluation" || info.name == "explain" ||
         info.name == "explain-dispatch";
}

std::string names(bool only_default) {
  std::string list;
  for (const insight::NamedLadder& l : insight::ladders())
    if (l.by_default || !only_default) list += (list.empty() ? "" : ", ") + l.name;
  return list;
}

std::vector<const insight::NamedLadder*> chosen_ladders(const std::vector<std::string>& given) {
  std::vector<const insight::NamedLadder*> list;
  for (const insight::NamedLadder& l : insight::ladders())
    if (given.empty() && l.by_default) list.push_back(&l);
  for (const std::string& name : given) {
    const auto& all = insight::ladders();
    const auto at =
        std::find_if(all.begin(), all.end(), [&](const auto& l) { return l.name == name; });
    if (at == all.end())
      usage_error("there is no ladder '{}'; expected one of {}", name, names(false));
    list.push_back(&*at);
  }
  return list;
}

void print(const std::vector<insight::Climbed>& climbed, bool json) {
  std::vector<std::string> parts;
  for (const insight::Climbed& c : climbed) parts.push_back(json ? c.json : c.table);
  if (json)
    fmt::print("{{\"ladders\":[{}]}}\n", fmt::join(parts, ","));
  else
    fmt::print("{}\n", fmt::join(parts, "\n"));
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
    else if (is_of_a_run(train::train_option_table().find(key)))
      usage_error("--{} has no meaning for a ladder: it times steps and keeps no run", name);
    else
      user.emplace_back(key, value);
  }
  const std::vector<const insight::NamedLadder*> chosen = chosen_ladders(args.positional);
  const train::TrainOptions checked = train::resolve(user);  // wrong options show before hours
  use_threads(checked.threads);

  options.rounds = static_cast<int>(flags.rounds);
  options.quick = flags.quick;
  options.options = user;
  options.memory_limit = train::memory_budget(checked).bytes;
  options.again = flags.again;
  options.record = fs::path(flags.output_dir) / "ladder.json";
  create_folder(flags.output_dir);
  const io::FolderLock lock(flags.output_dir, "climbing ladders");
  check_place(options.record.string());
  check_place(flags.html);
  int64_t all = 0, before = 0;
  for (const insight::NamedLadder* ladder : chosen) all += ladder->visits(options);
  std::vector<insight::Climbed> climbed;
  bool page_failed = false;
  {
    train::Progress progress({.label = "visit", .total = all, .plain_interval_seconds = 30});
    options.say = [&](const std::string& line) { progress.message(line); };
    try {
      for (const insight::NamedLadder* ladder : chosen) {
        options.progress = [&](int64_t done) { progress.update(before + done); };
        climbed.push_back(ladder->climb(options));
        before += ladder->visits(options);
        if (flags.html.empty()) continue;
        try {
          write_file_atomically(flags.html, insight::ladder_page(climbed));
          page_failed = false;
        } catch (const UserError& e) {
          // What is measured is worth more than its page, which the next ladder tries again.
          if (!page_failed)
            progress.message(fmt::format("{}; going on without the page", e.what()));
          page_failed = true;
        }
      }
    } catch (...) {
      progress.finish();
      // What was measured before is not lost.
      if (!flags.json && !climbed.empty()) print(climbed, false);
      throw;
    }
    progress.finish();
  }
  print(climbed, flags.json);
  return static_cast<int>(page_failed ? ExitCode::kFailed : ExitCode::kDone);
}

std::string notes() {
  std::string text = "Ladders:\n";
  for (const insight::NamedLadder& l : insight::ladders())
    text += fmt::format("  {:<14} {}\n", l.name, l.summary);
  return text + "Without a name: " + names(true) +
         ".\nA rung's training step is timed on random tokens, round after round, each time in a\n"
         "session of its own; the precision ladder also trains a small model in each format.\n"
         "What was measured is kept in the output folder, so a ladder that was interrupted goes "
         "on.\n--quick takes smaller models: some minutes for all of them on two cores.\n";
}

}  // namespace

Command ladder_command() {
  std::vector<OptionInfo> options = ladder_table().infos();
  for (OptionInfo& i : train::train_option_table().infos()) {
    if (i.name == "output-dir" || i.name == "json") continue;
    if (is_of_a_run(i)) i.stands_for = i.name;  // understood, to be refused, and not listed
    options.push_back(std::move(i));
  }
  return {.name = "ladder",
          .summary = "optimisation tables of the literature, measured again on this machine",
          .synopsis = "[LADDER...] [options, also those of train that shape a step]",
          .notes = notes(),
          .options = std::move(options),
          .run = run_ladder,
          .takes_positional = true};
}

}  // namespace brrr::cli
