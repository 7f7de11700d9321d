#include "train/elastic/elastic.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/tell.h"
#include "folders/checkpoint.h"
#include "formats/json_file.h"
#include "train/run_folder.h"

namespace brrr::train {
namespace {

/// Peer checkpoints are in the memory of the first host, where ranks of other hosts cannot write.
void refuse_peer_checkpoints(const TrainOptions& options) {
  if (options.elastic)
    usage_error(
        "--elastic is an option of `brrr launch` where ranks are on several hosts: write it before "
        "`train`");
  if (options.peer_checkpoint_steps > 0)
    usage_error(
        "--peer-checkpoint-steps {}: peer checkpoints are for ranks of one host; with --hosts, "
        "lost ranks go on from the checkpoints of --save-steps",
        options.peer_checkpoint_steps);
}

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
      [](const io::Checkpoint& checkpoint) { check_resumable(checkpoint); });
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

ElasticStart start_of(const LauncherMemory& memory) {
  return {true,
          LauncherMemory::is_of_several_hosts(),
          memory.restarts(),
          memory.go_on(),
          memory.folder(),
          memory.is_place_checked()};
}

std::string to_json(const ElasticStart& start) {
  return nlohmann::json{{"restarts", start.restarts},
                        {"step", start.go_on.step},
                        {"checkpoint", start.go_on.checkpoint},
                        {"folder", start.folder},
                        {"place_is_checked", start.is_place_checked}}
      .dump();
}

ElasticStart elastic_start_from_json(const std::string& text) {
  const io::Json j = io::parse_json(text, "what rank 0 says of the launcher");
  const std::string checkpoint = j.at("checkpoint");
  return {.is_elastic = true,
          .is_on_several_hosts = true,
          .restarts = j.at("restarts"),
          .go_on = {checkpoint.empty() ? GoOn::From::beginning : GoOn::From::checkpoint,
                    j.at("step"), checkpoint},
          .folder = j.at("folder"),
          .is_place_checked = j.at("place_is_checked")};
}

int64_t most_ranks(const TrainOptions& options, int64_t places) {
  const int64_t divided = options.deterministic_ranks > 0
                              ? options.deterministic_ranks
                              : options.batch_size * options.gradient_accumulation_steps;
  for (int64_t ranks = places; ranks > 1; --ranks)
    if (divided % ranks == 0) return ranks;
  return 1;
}

TrainOptions options_of_rank(const TrainOptions& given, const ElasticStart& start) {
  TrainOptions options = given;
  if (!start.is_elastic) {
    refuse_elastic(options);
    return options;
  }
  if (start.is_on_several_hosts)
    refuse_peer_checkpoints(options);
  else
    options.elastic = true;
  if (start.restarts == 0) return options;
  const GoOn& go_on = start.go_on;
  const std::string& folder = start.folder;
  if (!go_on.checkpoint.empty()) {
    // The record of the run holds the options that were given at the first start.
    options.resume = go_on.checkpoint;
    options.overwrite = false;
    options.output_dir.clear();
    std::erase_if(options.given, [](const std::string& name) { return name != "logging-steps"; });
    return options;
  }
  if (go_on.from == GoOn::From::memory) {
    // Take the recorded plan, because --fit might find another one now.
    const fs::path record = fs::path(folder) / "train_config.json";
    TrainOptions recorded = options_from_json(read_file(record), record.string());
    copy_per_call(options, recorded);
    recorded.given = options.given;
    options = std::move(recorded);
    options.fit = options.resume = "false";
  }
  if (!folder.empty()) options.output_dir = folder;
  if (start.is_place_checked) options.overwrite = true;  // the files there belong to this run
  return options;
}

}  // namespace brrr::train
