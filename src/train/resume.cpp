// Where a resumed run goes on.

#include <charconv>

#include "base/tell.h"
#include "folders/checkpoint.h"
#include "train/run_folder.h"
#include "train/run_place.h"
#include "train/trainer.h"

namespace brrr::train {
namespace {

// The runs/<preset>-<n> of highest n that has a checkpoint.
std::optional<fs::path> newest_run(const std::string& preset) {
  std::optional<fs::path> best;
  int64_t best_number = -1;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("runs", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(preset + "-")) continue;
    const char *begin = name.data() + preset.size() + 1, *end = name.data() + name.size();
    int64_t number = 0;
    const auto [stop, failure] = std::from_chars(begin, end, number);
    if (failure != std::errc() || stop != end || number <= best_number) continue;
    if (!entry.is_directory() || io::list_checkpoints(entry.path()).empty()) continue;
    best = entry.path();
    best_number = number;
  }
  return best;
}

// The run folder that a checkpoint stands in.
fs::path run_of(const fs::path& checkpoint) {
  const fs::path run = checkpoint.has_parent_path() ? checkpoint.parent_path() : fs::path(".");
  const bool is_named_so = checkpoint.filename().string().starts_with("checkpoint-");
  if (!is_named_so && !fs::exists(run / "train_config.json"))
    user_error(
        "--resume {}: this checkpoint is not in a run folder (there is no train_config.json beside "
        "it): move it back, or start a run from its weights by --init-from",
        checkpoint.string());
  return run;
}

void refuse_other_folder(const TrainOptions& options, const fs::path& run) {
  std::error_code ignored;
  if (!options.was_given("output-dir") || fs::equivalent(options.output_dir, run, ignored)) return;
  usage_error(
      "--resume goes on in {}; --output-dir {} is another folder. Leave it out, or start another "
      "run there by --init-from",
      run.string(), options.output_dir);
}

}  // namespace

ResumePoint find_resume_point(const TrainOptions& options) {
  fs::path run;
  if (options.resume != "true") {
    run = without_last_slash(options.resume);
    if (!fs::is_directory(run))
      user_error("--resume {}: no such folder; a run folder or a checkpoint-* folder was expected",
                 options.resume);
    if (fs::exists(run / "trainer_state.json")) {
      const ResumePoint point{run_of(run), run};
      refuse_other_folder(options, point.run);
      io::open_checkpoint(run);
      return point;
    }
    refuse_other_folder(options, run);
  } else if (!options.output_dir.empty()) {
    run = without_last_slash(options.output_dir);
    if (!fs::is_directory(run))
      user_error("--resume: the run folder {} does not exist", run.string());
  } else {
    const auto found = newest_run(options.preset);
    if (!found)
      user_error("--resume: no run of preset {} with a checkpoint in runs/; name the run folder",
                 options.preset);
    run = *found;
  }
  if (io::list_checkpoints(run).empty())
    user_error("--resume: {} has no checkpoint{}", run.string(),
               fs::exists(run / "train_config.json") ? "; begin it again with --overwrite" : "");
  const auto checkpoint = io::latest_valid(
      run, [](const std::string& line) { tell("warning: passed over: {}\n", line); },
      check_resumable);
  if (!checkpoint) user_error("--resume: {} has no checkpoint that can be used", run.string());
  return {run, checkpoint->folder};
}

}  // namespace brrr::train
