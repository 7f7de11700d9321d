// brrr ladder: the optimisation tables of the literature, measured again on this machine.

#include <algorithm>

#include "base/file.h"
#include "base/memory.h"
#include "base/terminal/progress.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "folders/folder_lock.h"
#include "insight/ladder/ladder.h"
#include "machine/process.h"
#include "train/fit.h"

namespace brrr::cli {
namespace {

struct LadderFlags {
  std::string model;
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
    t.text("model", &LadderFlags::model, "FOLDER",
           "inference: a run, checkpoint or model folder, or ORG/NAME[@REVISION] of the Hugging "
           "Face Hub, compared on --text (default: random weights of --preset, gpt2)");
    t.integer("rounds", &LadderFlags::rounds, 1, 1000, "N",
              "measurements of each rung, for medians and quartiles");
    t.text("output-dir", &LadderFlags::output_dir, "DIR",
           "folder of ladder.json; rungs recorded there are not measured again");
    t.text("html", &LadderFlags::html, "FILE", "write charts and tables as one HTML page");
    t.flag("quick", &LadderFlags::quick, "smaller models: the same comparison in a few minutes");
    t.flag("again", &LadderFlags::again, "measure these ladders again");
    t.flag("json", &LadderFlags::json, "one JSON object with all ladders on standard output");
    return t;
  }();
  return table;
}

/// Whether an option of `train` concerns only the run that it keeps: its folder, its evaluations,
/// its log, what it prints. None of them changes what a step costs.
bool is_of_a_run(const OptionInfo& given) {
  const OptionInfo& info =
      given.stands_for.empty() ? given : train::train_option_table().find(given.stands_for);
  for (const char* name :
       {"explain", "explain-dispatch", "elastic", "max-restarts", "peer-checkpoint-steps"})
    if (info.name == name) return true;
  return info.group == "run" || info.group == "evaluation";
}

// -- options

/// Options of `train` that shape the steps, and the prefix of an error about each.
struct Changes {
  KeyValues options;
  std::vector<std::string> where;
  void add(const std::string& key, const std::string& value, std::string place) {
    options.emplace_back(key, value);
    where.push_back(std::move(place));
  }
};

/// The given options, with the contents of a --config file in place of its name. They override the
/// ladder's own options, and they identify its record.
Changes changes_of(const KeyValues& given, const std::string& config) {
  const auto& table = train::train_option_table();
  const auto option_of = [](const OptionInfo& row) {
    return row.stands_for.empty() ? row.name : row.stands_for;
  };
  const auto is_given = [&](const OptionInfo& row) {
    return std::any_of(given.begin(), given.end(), [&](const auto& g) {
      return option_of(table.find(g.first)) == option_of(row);
    });
  };
  Changes changes;
  if (!config.empty())
    for (const train::FileSetting& s : train::read_toml(config)) {
      const OptionInfo& row = table.find(s.key);
      if (is_of_a_run(row) || row.name == "fit" || s.value.empty() || is_given(row)) continue;
      changes.add(s.key, s.value, s.where + ": " + s.key);
    }
  for (const auto& [key, value] : given)
    if (const std::string& name = table.find(key).name; name != "config" && name != "fit")
      changes.add(key, value, "--" + canonical_key(key));
  return changes;
}

constexpr const char* kInference = "inference";  // the ladder of --model

/// Refuses options of `train` that none of the ladders reads; ladders of training steps read all.
void check_read(const KeyValues& given, const std::vector<const insight::NamedLadder*>& chosen,
                const insight::LadderOptions& options) {
  std::string names;
  for (const insight::NamedLadder* l : chosen) {
    if (l->of_steps != nullptr) return;
    names += (names.empty() ? "" : ", ") + l->name;
  }
  for (const auto& [key, value] : given) {
    const OptionInfo& info = train::train_option_table().find(key);
    const bool is_read = info.name == "threads" || std::ranges::any_of(chosen, [&](const auto* l) {
                           return l->reads && l->reads(options, info);
                         });
    if (is_read) continue;
    const bool has_inference =
        std::ranges::any_of(chosen, [](const auto* l) { return l->name == kInference; });
    usage_error("--{} has no effect on {}{}; expected --threads or the ladder's own options",
                canonical_key(key), names,
                !options.model.empty()                 ? " with --model"
                : has_inference && info.name == "text" ? " without --model"
                                                       : "");
  }
}

std::string names(bool only_default) {
  std::string list;
  for (const insight::NamedLadder& l : insight::ladders())
    if (l.by_default || !only_default) list += (list.empty() ? "" : ", ") + l.name;
  return list;
}

std::vector<const insight::NamedLadder*> chosen_ladders(std::vector<std::string> given,
                                                        bool has_model) {
  std::vector<const insight::NamedLadder*> list;
  if (has_model && given.empty()) given.emplace_back(kInference);
  for (const insight::NamedLadder& l : insight::ladders())
    if (given.empty() && l.by_default) list.push_back(&l);
  for (const std::string& name : given) {
    const auto& all = insight::ladders();
    const auto at =
        std::find_if(all.begin(), all.end(), [&](const auto& l) { return l.name == name; });
    if (at == all.end())
      usage_error("there is no ladder '{}'; expected one of {}", name, names(false));
    if (std::find(list.begin(), list.end(), &*at) == list.end()) list.push_back(&*at);
  }
  if (has_model && std::ranges::find(given, kInference) == given.end())
    usage_error("--model applies to the ladder {}, which is not among those named", kInference);
  return list;
}

void print(const std::vector<insight::Climbed>& climbed, bool json) {
  std::vector<std::string> parts;
  for (const insight::Climbed& c : climbed) {
    parts.push_back(json ? c.json : c.table);
    if (!json && !c.disturbance.empty()) parts.back() += c.disturbance + "\n";
  }
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
      usage_error("--{} does not apply to a ladder, which times steps and saves no run", name);
    else
      user.emplace_back(key, value);
  }
  const std::vector<const insight::NamedLadder*> chosen =
      chosen_ladders(args.positional, !flags.model.empty());
  options.model = flags.model.empty() ? "" : find_named_model(flags.model).string();
  check_read(user, chosen, options);
  if (train::resolve_unchecked(user).lora_r > 0)
    usage_error(
        "--lora-r: a ladder times the training of whole models, not of adapters: `brrr plan FOLDER "
        "--lora-r N` compares an adapter's memory and time with full fine-tuning, and `brrr "
        "profile "
        "--init-from FOLDER --lora-r N` times its steps");
  const train::TrainOptions checked = train::resolve(user);  // wrong options show before hours
  if (checked.wants_fit()) usage_error("--fit does not apply to a ladder; use `brrr plan --fit`");
  use_threads(checked.threads);
  const Changes changes = changes_of(user, checked.config);

  options.rounds = static_cast<int>(flags.rounds);
  options.quick = flags.quick;
  options.options = changes.options;
  options.version = BRRR_VERSION;
  for (const insight::NamedLadder* ladder : chosen)
    if (ladder->of_steps != nullptr)
      insight::check_options(*ladder->of_steps, options, changes.where);
    else if (ladder->check)
      ladder->check(options);
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
  const machine::SignalGuard guard(
      "stopping after this measurement; press Ctrl-C again to stop at once");
  options.stop = [] { return machine::SignalGuard::received() != 0; };
  {
    Progress progress({.label = "visit", .total = all, .plain_interval_seconds = 30});
    options.say = [&](const std::string& line) { progress.message(line); };
    try {
      for (const insight::NamedLadder* ladder : chosen) {
        options.progress = [&](int64_t done) { progress.update(before + done); };
        climbed.push_back(ladder->climb(options));
        before += ladder->visits(options);
        if (flags.html.empty()) continue;
        try {
          write_named_file(flags.html, insight::ladder_page(climbed));
          page_failed = false;
        } catch (const UserError& e) {
          // Continue without the page: measurements matter more, and the next ladder writes it
          // again.
          if (!page_failed)
            progress.message(fmt::format("{}; continuing without the page", e.what()));
          page_failed = true;
        }
      }
    } catch (const insight::ClimbStopped&) {
      progress.finish();
      if (!flags.json && !climbed.empty()) print(climbed, false);
      if (fs::exists(options.record))
        progress.message(fmt::format(
            "stopped; measurements so far are in {}; to continue, run the same command{}",
            options.record.string(), flags.again ? " without --again" : ""));
      else
        progress.message("stopped; nothing was measured");
      return 128 + machine::SignalGuard::received();
    } catch (...) {
      progress.finish();
      // Print the ladders that were measured before the failure.
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
         ".\n"
         "Each rung's training step is timed on random tokens, in several rounds, each time in a\n"
         "session of its own; the precision ladder also trains a small model in each format.\n"
         "Options in which the rungs of a ladder differ are refused.\n"
         "Results are kept in the output folder, so an interrupted ladder continues from there.\n"
         "The inference ladder decodes with a model of next tokens, on the CPU. With --model "
         "FOLDER\n"
         "it also compares each format with fp32 on --text, by default the end of tiny\n"
         "Shakespeare; without a name, --model climbs this ladder alone.\n"
         "--quick uses smaller models: a few minutes for all ladders on two cores.\n";
}

}  // namespace

Command ladder_command() {
  std::vector<OptionInfo> options = ladder_table().infos();
  for (OptionInfo& i : train::train_option_table().infos()) {
    if (i.name == "output-dir" || i.name == "json") continue;
    if (is_of_a_run(i) || i.name == "fit")
      i.stands_for = i.name;  // understood, to be refused, and not listed
    options.push_back(std::move(i));
  }
  return {.name = "ladder",
          .summary = "reproduce published optimisation tables on this machine",
          .synopsis = "[LADDER...] [options, including those of train that affect a step]",
          .notes = notes(),
          .options = std::move(options),
          .run = run_ladder,
          .takes_positional = true,
          .works_unread = true,
          .is_for_one_process = true};
}

}  // namespace brrr::cli
