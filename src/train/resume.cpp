// Finds the run and the checkpoint that --resume goes on from.

#include <algorithm>

#include "base/human.h"
#include "base/tell.h"
#include "folders/checkpoint.h"
#include "folders/folder_lock.h"
#include "runtime/ranks/shared_work.h"
#include "train/run_folder.h"
#include "train/run_place.h"
#include "train/runs/run_list.h"
#include "train/trainer.h"

namespace brrr::train {
namespace {

std::vector<fs::path> places(const std::vector<std::string>& names) {
  std::vector<fs::path> all;
  for (const std::string& name : names) {
    std::error_code ignored;
    all.push_back(fs::weakly_canonical(name, ignored));
  }
  return all;
}

/// Returns the first option that is given now and contradicts the recorded ones, so that another
/// run must be meant; "" if there is none.
std::string differing_option(const TrainOptions& recorded, const TrainOptions& now) {
  for (const auto& row : train_option_table().rows()) {
    if (!row.get || !now.was_given(row.name)) continue;
    const bool is_data = row.name == "text" || row.name == "data" || row.name == "val-data";
    // --fit cuts a step into other batches: merge_for_resume() knows which are the same.
    const bool is_cut = row.name == "batch-size" || row.name == "gradient-accumulation-steps";
    if ((may_change_on_resume(row) && !is_data) || is_cut) continue;
    const auto before = row.get(recorded), after = row.get(now);
    if (is_data ? places(before) != places(after) : before != after)
      return fmt::format(
          "--{} {}, and it has {}", row.name, fmt::join(after, " "),
          before.empty() || before[0].empty() ? "none" : fmt::format("{}", fmt::join(before, " ")));
  }
  return "";
}

/// Returns the newest resumable run in a folder of runs. Throws UserError (exit 2) with a list of
/// runs if the options contradict those of that run.
RunSummary run_to_resume(const TrainOptions& options, const fs::path& folder) {
  const std::vector<RunSummary> candidates = resumable(list_runs(folder));
  if (candidates.empty())
    user_error(
        "--resume: no run in {}/ has a checkpoint to go on from; name the run's folder, or "
        "begin a run without --resume",
        folder.string());
  const RunSummary& newest = candidates.front();
  const fs::path record = newest.folder / "train_config.json";
  const std::string other =
      differing_option(options_from_json(read_file(record), record.string()), options);
  if (other.empty()) return newest;
  std::string choice;
  constexpr size_t kMost = 5;
  for (size_t i = 0; i < std::min(kMost, candidates.size()); ++i)
    choice += fmt::format("{}--resume {} ({}, {})", i > 0 ? ", " : "",
                          shell_word(candidates[i].folder.string()), candidates[i].preset,
                          progress_text(candidates[i]));
  usage_error("--resume: the newest run to go on with is {}, but got {}. Name one: {}{}",
              newest.folder.string(), other, choice,
              candidates.size() > kMost ? "; `brrr runs` lists all" : "");
}

/// Returns the run folder that contains a checkpoint.
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

/// Refuses to resume a run without a checkpoint.
[[noreturn]] void refuse_unsaved(const fs::path& run) {
  const fs::path record = run / "train_config.json";
  std::error_code ignored;
  if (!fs::exists(record, ignored))
    user_error(
        "--resume: {} holds no run and no checkpoint; `brrr runs FOLDER` lists the runs in a "
        "folder",
        run.string());
  const io::FolderLock lock(run, "training");  // throws if the run is still active
  user_error(
      "--resume: {} stopped before its first checkpoint; begin it again: `{}`", run.string(),
      command_to_begin_again(options_from_json(read_file(record), record.string()), run.string()));
}

/// Checks where the base of an adapter is. Throws UserError if it is gone, or if its weights are
/// others, and (exit 2) if --init-from is given for a checkpoint that holds a whole model.
void check_base(const TrainOptions& options, const fs::path& checkpoint) {
  const bool is_named = options.was_given("init-from") && options.init_from != "scratch";
  if (!io::holds_adapter(checkpoint)) {
    if (is_named)
      usage_error(
          "expected --resume or --init-from, not both: a run already has its weights. Both are for "
          "adapters whose base has moved");
    return;
  }
  if (is_named && io::holds_adapter(io::find_model(options.init_from)))
    usage_error("--init-from {}: an adapter; with --resume name the model that it was trained over",
                options.init_from);
  fs::path base = moved_base(options, checkpoint);
  try {
    if (base.empty()) base = io::base_folder(checkpoint);
  } catch (const UserError& e) {
    user_error("{}; if it has moved, name its new place by --init-from", e.what());
  }
  bool is_same = true;
  try {
    is_same = io::is_base_of(checkpoint, base);
  } catch (const UserError& e) {
    if (is_named) user_error("--init-from {}: {}", options.init_from, e.what());
    return;  // the checkpoint may be damaged, and an older one be whole
  }
  if (!is_same)
    user_error(
        "{}: its weights are not those that the adapter of {} was trained over; name the folder "
        "that has them by --init-from, or begin a new run",
        base.string(), checkpoint.parent_path().string());
}

}  // namespace

void refuse_fewer_steps(const TrainOptions& options, int64_t done, const fs::path& run) {
  if (!options.was_given("max-steps") || options.max_steps == 0 || options.max_steps >= done)
    return;
  usage_error(
      "--max-steps {0}: {1} has done {2} already; leave --max-steps out, name more than {4} "
      "to go on, or begin another run from its weights by --init-from {3}",
      options.max_steps, run.string(), counted(done, "step"), shell_word(run.string()), done);
}

ResumePoint find_resume_point(const TrainOptions& options) {
  fs::path run;
  std::optional<RunSummary> found;
  if (options.resume != "true") {
    run = without_last_slash(options.resume);
    if (!fs::is_directory(run))
      user_error("--resume {}: no such folder; expected a run folder or a checkpoint-* folder",
                 options.resume);
    if (fs::exists(run / "trainer_state.json")) {
      const ResumePoint point{run_of(run), run, ""};
      refuse_other_folder(options, point.run);
      io::open_checkpoint(run);
      check_base(options, run);
      return point;
    }
  } else {
    run = without_last_slash(options.output_dir);
    if (!run.empty() && !fs::is_directory(run))
      user_error("--resume: the run folder {} does not exist", run.string());
    if (run.empty()) run = "runs";
  }
  // If the folder is a run itself, that run is meant, whatever its state.
  if (!is_run(run) &&
      (!list_runs(run).empty() || (options.resume == "true" && options.output_dir.empty()))) {
    found = run_to_resume(options, run);
    run = found->folder;
  } else if (options.resume != "true") {
    refuse_other_folder(options, run);
  }
  const std::vector<io::Checkpoint> all = io::list_checkpoints(run);
  if (all.empty()) refuse_unsaved(run);
  check_base(options, all.back().folder);
  const auto checkpoint = io::latest_valid(
      run, [](const std::string& line) { tell("warning: passed over: {}\n", line); },
      [&](const io::Checkpoint& c) { check_resumable(c, moved_base(options, c.folder)); });
  if (!checkpoint) user_error("--resume: {} has no checkpoint that can be used", run.string());
  if (!found) return {run, checkpoint->folder, ""};
  found->step = checkpoint->step;
  return {run, checkpoint->folder,
          fmt::format("resuming {}, {}", run.string(), progress_text(*found))};
}

ResumePoint shared_resume_point(const TrainOptions& options, Communicator* communicator) {
  if (communicator == nullptr) return find_resume_point(options);
  std::optional<ResumePoint> own;  // set on rank 0
  Packed told(text_of_first(communicator, [&] {
    own = find_resume_point(options);
    Packed packed;
    for (const std::string& text :
         {options.resume, options.output_dir, own->run.string(), own->checkpoint.string()})
      packed.put_text(text);
    return packed.bytes();
  }));
  if (own) return *own;
  const std::string resume = told.take_text(), output_dir = told.take_text();
  if (resume != options.resume || output_dir != options.output_dir)
    return find_resume_point(options);
  const fs::path run = told.take_text(), checkpoint = told.take_text();
  return {run, checkpoint, ""};
}

}  // namespace brrr::train
