#include "train/elastic/elastic.h"

#include "base/file.h"
#include "base/tell.h"
#include "folders/checkpoint.h"
#include "train/run_folder.h"

namespace brrr::train {
namespace {

void refuse_elastic(const TrainOptions& options) {
  if (options.elastic)
    usage_error(
        "--elastic starts lost ranks again, which only the program can that starts all of them: "
        "use `brrr launch --elastic -n N train ...`, or --ranks N");
  if (options.peer_checkpoint_steps > 0)
    usage_error(
        "--peer-checkpoint-steps {}: peer checkpoints need memory that outlives a rank; add "
        "--elastic, or leave it out",
        options.peer_checkpoint_steps);
}

}  // namespace

GoOn find_go_on(const LauncherMemory& memory) {
  GoOn found;
  const fs::path folder = memory.folder();
  std::error_code ignored;
  if (folder.empty() || !fs::is_directory(folder, ignored)) return found;
  const auto on_disk = io::latest_valid(
      folder, [](const std::string& line) { tell("warning: passed over: {}\n", line); },
      check_resumable);
  if (on_disk) found = {GoOn::From::checkpoint, on_disk->step, on_disk->folder.string()};
  const auto kept = memory.newest();
  if (kept && (!on_disk || kept->step > on_disk->step)) {
    found.from = GoOn::From::memory;
    found.step = kept->step;
  }
  return found;
}

std::string text_of(const GoOn& go_on) {
  switch (go_on.from) {
    case GoOn::From::memory:
      return fmt::format("from step {} in memory", go_on.step);
    case GoOn::From::checkpoint:
      return fmt::format("from the checkpoint of step {}", go_on.step);
    case GoOn::From::beginning:
      break;
  }
  return "from the beginning";
}

TrainOptions options_of_rank(const TrainOptions& given,
                             const std::optional<LauncherMemory>& memory) {
  TrainOptions options = given;
  if (!memory) {
    refuse_elastic(options);
    return options;
  }
  options.elastic = true;
  if (memory->restarts() == 0) return options;
  const GoOn go_on = memory->go_on();
  const std::string folder = memory->folder();
  if (!go_on.checkpoint.empty()) {
    // The record of the run has all that was given at the first start.
    options.resume = go_on.checkpoint;
    options.overwrite = false;
    options.output_dir.clear();
    std::erase_if(options.given, [](const std::string& name) { return name != "logging-steps"; });
    return options;
  }
  if (go_on.from == GoOn::From::memory) {
    // --fit may have found another plan than it would find now.
    const fs::path record = fs::path(folder) / "train_config.json";
    TrainOptions recorded = options_from_json(read_file(record), record.string());
    copy_per_call(options, recorded);
    recorded.given = options.given;
    options = std::move(recorded);
    options.fit = options.resume = "false";
  }
  if (!folder.empty()) options.output_dir = folder;
  if (memory->is_place_checked()) options.overwrite = true;  // what is there is of this run
  return options;
}

}  // namespace brrr::train
