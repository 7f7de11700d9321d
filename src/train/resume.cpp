// Where a resumed run goes on.

#include <charconv>

#include "io/checkpoint.h"
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

}  // namespace

ResumePoint find_resume_point(const TrainOptions& options) {
  fs::path run;
  if (options.resume != "true") {
    run = options.resume;
    if (!fs::is_directory(run))
      user_error("--resume {}: no such folder; a run folder or a checkpoint-* folder was expected",
                 options.resume);
    if (fs::exists(run / "trainer_state.json")) {
      io::verify({run, 0});
      const fs::path parent = fs::absolute(run).lexically_normal().parent_path();
      return {run.has_filename() ? run.parent_path() : parent, run};
    }
  } else if (!options.output_dir.empty()) {
    run = options.output_dir;
    if (!fs::is_directory(run))
      user_error("--resume: the run folder {} does not exist", run.string());
  } else {
    const auto found = newest_run(options.preset);
    if (!found)
      user_error("--resume: no run of preset {} with a checkpoint in runs/; name the run folder",
                 options.preset);
    run = *found;
  }
  const auto checkpoint = io::latest_valid(
      run, [](const std::string& line) { fmt::print(stderr, "warning: {}\n", line); });
  if (!checkpoint) user_error("--resume: {} has no checkpoint that can be used", run.string());
  return {run, checkpoint->folder};
}

}  // namespace brrr::train
