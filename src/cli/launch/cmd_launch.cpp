// brrr launch: starts the ranks of a run, here or on other hosts.

#include <algorithm>

#include "cli/commands.h"
#include "cli/foreign_words.h"
#include "cli/launch/elastic_hosts.h"
#include "cli/launch/local_ranks.h"
#include "cli/launch/mpirun.h"
#include "runtime/ranks/host_segment.h"
#include "runtime/ranks/place.h"

namespace brrr::cli {
namespace {

struct LaunchOptions {
  int64_t processes = 0;
  std::string hosts;
  bool binds = false, elastic = false;
  int64_t max_restarts = train::TrainOptions().max_restarts;
};

const OptionTable<LaunchOptions>& launch_table() {
  static const OptionTable<LaunchOptions> table = [] {
    using O = LaunchOptions;
    OptionTable<O> t;
    t.group("ranks");
    t.integer("processes", &O::processes, 1, kMostRanksOfARun, "N",
              "how many to start, numbered from 0; -n N for short",
              {"nproc-per-node", "num-processes", "np"});
    t.text("hosts", &O::hosts, "A,B",
           "start them by mpirun on these hosts, as many on each; a:4,b:2 says how many each gets");
    t.flag("bind", &O::binds,
           "keep each rank on its share of the processors, unless there are more ranks than these");
    t.flag(
        "elastic", &O::elastic,
        "of train: start all ranks again when one is lost (killed, stopped, out of memory), from "
        "the newest peer checkpoint or checkpoint; with --hosts from the newest checkpoint, and "
        "without hosts that do not answer");
    t.integer("max-restarts", &O::max_restarts, 0, 1'000'000, "N",
              "how often --elastic starts them again; three times without a new step end the run "
              "before");
    return t;
  }();
  return table;
}

/// The command line to start, with the verb's name in Brrr. Throws UserError (usage) if there is no
/// such verb.
std::vector<std::string> checked_command(std::vector<std::string> words) {
  if (words.empty())
    usage_error(
        "expected a verb to start, such as `brrr launch -n 4 train`; see `brrr launch "
        "--help`");
  words = with_our_verb(std::move(words));
  std::vector<std::string> names;
  for (const Command& command : commands())
    if (command.name != "launch") names.push_back(command.name);
  if (words[0] == "launch") usage_error("launch cannot start itself; name another verb");
  if (std::ranges::find(names, words[0]) == names.end()) {
    const std::string likely = nearest(words[0], names);
    usage_error(
        "unknown verb 'brrr {}'; {}", words[0],
        likely.empty() ? "see `brrr --help`" : fmt::format("did you mean 'brrr {}'?", likely));
  }
  const auto verb = std::ranges::find(commands(), words[0], &Command::name);
  if (verb->is_for_one_process)
    usage_error("{} is the work of one process: call `brrr {}` without launch", words[0], words[0]);
  return words;
}

/// Returns the options of a command line that begins with `train`; nothing for other verbs and for
/// options that the ranks will refuse.
std::optional<train::TrainOptions> train_options_of(const std::vector<std::string>& command) {
  if (command[0] != "train") return std::nullopt;
  const auto train = std::ranges::find(commands(), "train", &Command::name);
  try {
    const std::vector<std::string> words(command.begin() + 1, command.end());
    return train_options(parse_arguments(
        train->options, with_our_options(train->options, words, "brrr train"), "brrr train"));
  } catch (const UserError&) {
    return std::nullopt;
  }
}

int run_launch(const Arguments& args) {
  LaunchOptions options;
  for (const auto& [key, value] : args.given)
    launch_table().set(options, launch_table().find(key), value, "--" + canonical_key(key));
  const std::vector<std::string> command = checked_command(args.positional);
  if (find_place().ranks > 1)
    usage_error("this process is one rank of {} already, which {} started; leave `brrr launch` out",
                find_place().ranks, find_place().source);
  if (options.elastic && command[0] != "train")
    usage_error("--elastic starts lost ranks of `brrr train` again; {} has no step to go on from",
                command[0]);
  const std::optional<train::TrainOptions> train = train_options_of(command);
  // The option may also follow the verb, because `train --ranks N --elastic` has it, too.
  const bool is_given = std::ranges::any_of(
      args.given, [](const auto& g) { return canonical_key(g.first) == "max-restarts"; });
  if (train && !is_given) options.max_restarts = train->max_restarts;
  if (!options.hosts.empty()) {
    const std::vector<HostRanks> hosts = parse_hosts(options.hosts, options.processes);
    if (!options.elastic || !train)
      return run_on_hosts(hosts, command, train ? train->rank_timeout : 0);
    return run_elastic_hosts({hosts, command, *train, options.max_restarts});
  }
  if (options.processes == 0)
    usage_error("expected the number of ranks to start: `brrr launch -n 4 {} ...`", command[0]);
  if (options.processes > ranks::HostSegment::kMostRanks)
    usage_error("expected at most {} ranks on one host; got {}", ranks::HostSegment::kMostRanks,
                options.processes);
  return run_local_ranks(
      {.ranks = static_cast<int>(options.processes),
       .command = command,
       .binds = options.binds,
       .max_restarts = options.elastic ? std::optional(options.max_restarts) : std::nullopt,
       .timeout_seconds = train ? train->rank_timeout : 0});
}

}  // namespace

Command launch_command() {
  return {
      .name = "launch",
      .summary = "start a verb as several ranks: processes that share its work",
      .synopsis = "-n N [--elastic] [--hosts A,B] VERB [arguments of the verb]",
      .notes =
          "Options of launch stand before the verb. Each rank gets a share of the processors for\n"
          "its threads. Rank 0 prints as it would alone; what the others print is shown when one\n"
          "of them fails, and then all end. The same command line without `launch` runs under\n"
          "mpirun, torchrun and srun.\n",
      .options = launch_table().infos(),
      .run = run_launch,
      .takes_positional = true,
      .takes_command = true};
}

}  // namespace brrr::cli
