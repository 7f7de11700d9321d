// Options of a resumed run: which are taken from its record and which may be changed.
#include <algorithm>
#include <array>

#include "base/file.h"
#include "train/options.h"
#include "train/options/evaluation_options.h"
#include "train/options/row_folder.h"

namespace brrr::train {

namespace {

using ResumeRow = OptionTable<TrainOptions>::Row;

// They decide how the rest of a run learns, and nothing that its checkpoint holds.
constexpr const char* kLearningOptions[] = {
    "learning-rate",  "min-lr",       "lr-scheduler-type", "warmup-steps",
    "lr-decay-steps", "weight-decay", "max-grad-norm",     "muon-learning-rate"};

bool is_learning_option(const std::string& name) {
  return std::ranges::find(kLearningOptions, name) != std::end(kLearningOptions);
}

void copy_option(const ResumeRow& row, const TrainOptions& from, TrainOptions& to) {
  const std::vector<std::string> items = row.get(from);
  if (row.clear) row.clear(to);
  for (const std::string& item : items) row.set(to, item);
}

/// Sequences in a step.
int64_t rows_of(const TrainOptions& o) { return o.batch_size * o.gradient_accumulation_steps; }

void settle_rates(const TrainOptions& recorded, const TrainOptions& now, TrainOptions& result) {
  if (recorded.relative_step && now.was_given("learning-rate"))
    usage_error(
        "--resume cannot change --learning-rate: the steps of this run are relative "
        "(--relative-step), and no learning rate sets them");
  if (!now.was_given("min-lr") && recorded.min_lr == default_min_lr(recorded))
    result.min_lr = default_min_lr(result);
  check_min_lr(result);
}

}  // namespace

bool may_change_on_resume(const ResumeRow& row) {
  return row.free_on_resume || is_learning_option(row.name);
}

void copy_per_call(const TrainOptions& from, TrainOptions& to) {
  for (const ResumeRow& row : train_option_table().rows())
    if (row.get && is_per_call(row.name)) copy_option(row, from, to);
}

TrainOptions merge_for_resume(const TrainOptions& recorded, const TrainOptions& now,
                              const std::string& what) {
  TrainOptions result = recorded;
  result.given = now.given;
  // A step that --fit divided into micro-batches may be named undivided again. The first command
  // had --fit, but the record, written by the last part of the run, may lack it. The slots of
  // --deterministic-ranks divide a step too.
  const bool recut =
      (recorded.wants_fit() || now.wants_fit() || recorded.deterministic_ranks > 0) &&
      rows_of(recorded) == rows_of(now);
  for (const ResumeRow& row : train_option_table().rows()) {
    if (!row.get) continue;
    const bool given = now.was_given(row.name);
    const auto before = row.get(recorded), after = row.get(now);
    const bool cuts = row.name == "batch-size" || row.name == "gradient-accumulation-steps";
    // The new place of an adapter's base, which find_resume_point() has compared.
    const bool is_base = row.name == "init-from";
    if (given && !may_change_on_resume(row) && before != after && !(cuts && recut) && !is_base)
      usage_error(
          "--resume cannot change --{} ({} in {}, now {}); leave it out, or start a new run with "
          "--init-from {}",
          row.name, fmt::join(before, " "), what, fmt::join(after, " "), what);
    if ((given && (may_change_on_resume(row) || is_base)) || is_per_call(row.name))
      copy_option(row, now, result);
  }
  fill_row_folder(result);
  settle_rates(recorded, now, result);
  // --eval-batches then counts batches of the whole size too: convert it to recorded batches with
  // as many rows in total.
  if (recut && now.wants_fit() && recorded.batch_size != now.batch_size &&
      now.was_given("eval-batches") && !now.was_given("eval-batch-size") &&
      result.eval_batch_size > 0)
    result.eval_batches = (now.eval_batches * now.eval_batch_size + result.eval_batch_size - 1) /
                          result.eval_batch_size;
  const auto was_given = [&](const char* name) { return now.was_given(name); };
  if (std::ranges::any_of(
          std::array{"metric-for-best-model", "greater-is-better", "load-best-model-at-end"},
          was_given))
    validate_evaluation(result);
  // A longer run goes by steps again.
  if (now.was_given("num-train-epochs") && now.max_steps == 0) result.max_steps = 0;
  return result;
}

TrainOptions with_later_changes(const TrainOptions& at_checkpoint,
                                const std::filesystem::path& run) {
  const std::filesystem::path file = run / "train_config.json";
  TrainOptions record;
  try {
    record = options_from_json(read_file(file), file.string());
  } catch (const UserError&) {  // the checkpoint has all that is needed
    return at_checkpoint;
  }
  TrainOptions result = at_checkpoint;
  for (const ResumeRow& row : train_option_table().rows())
    if (row.get && may_change_on_resume(row) && !is_per_call(row.name))
      copy_option(row, record, result);
  return result;
}

std::vector<OptionChange> changes_on_resume(const TrainOptions& at_checkpoint,
                                            const TrainOptions& now) {
  std::vector<OptionChange> changes;
  for (const ResumeRow& row : train_option_table().rows()) {
    const bool counts = is_learning_option(row.name) || row.group == "evaluation" ||
                        row.name == "max-steps" || row.name.starts_with("save-");
    if (!row.get || !counts || is_per_call(row.name)) continue;
    const auto before = row.get(at_checkpoint), after = row.get(now);
    if (before != after)
      changes.push_back({row.name, fmt::format("{}", fmt::join(before, " ")),
                         fmt::format("{}", fmt::join(after, " "))});
  }
  return changes;
}

std::vector<std::string> texts_of(const std::vector<OptionChange>& changes) {
  std::vector<std::string> texts;
  for (const OptionChange& c : changes)
    texts.push_back(fmt::format("--{} {} (was {})", c.name, c.now.empty() ? "''" : c.now,
                                c.before.empty() ? "''" : c.before));
  return texts;
}

}  // namespace brrr::train
