#pragma once
// The runs that a folder holds, told from their files: how far each came, how well, and whether
// something is left to do. Reads only; what cannot be read makes a run broken, and is no error.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "train/options.h"

namespace brrr::train {

/// An evaluation as a record of a log tells it. `set` names what it was measured on, as
/// Score::set does; older versions left it out, and measured the last one on other tokens than
/// those before.
struct LoggedEvaluation {
  double loss = 0;     // NaN where it was not finite
  int64_t tokens = 0;  // 0: not recorded
  std::string set;     // "final" for the last one by an older version, "" for its others
};
/// Nothing for a record of something else.
std::optional<LoggedEvaluation> logged_evaluation(const nlohmann::json& record);

/// What the records of a log say of its run as a whole, one after the other.
class RunOutline {
 public:
  void add(const nlohmann::json& record);

  int64_t last_step = 0;
  /// The last evaluation, whose loss may be NaN, and the best of those on the same tokens, which is
  /// finite.
  std::optional<LoggedEvaluation> evaluation;
  std::optional<double> best_val_loss;
  int64_t best_step = -1;
  bool is_finished = false;  // its last record says so; a resumed run goes on after it
  bool has_failed = false;   // a number that is none ended it
};

/// The texts of a record that says what the model wrote after a step; none of other records.
std::vector<std::string> logged_samples(const nlohmann::json& record);

/// unsaved: it was stopped before its first checkpoint.
enum class RunState { finished, interrupted, running, unsaved, broken };
std::string_view name_of(RunState state);

struct RunSummary {
  fs::path folder;
  RunState state = RunState::broken;
  std::string fault;  // of a broken one
  std::string preset, architecture;
  int64_t step = 0;       // done; of an interrupted run: those that --resume does not do again
  int64_t max_steps = 0;  // 0: not known
  std::optional<double> best_val_loss;
  double age_seconds = 0;  // since it last wrote something
  bool has_checkpoint = false;
};

/// Whether the folder holds what a run writes.
bool is_run(const fs::path& folder);

/// What a folder says for which is_run() holds.
RunSummary summary_of(const fs::path& run);

/// The runs in `folder`, or the one that it is, the newest first; none where it does not exist.
std::vector<RunSummary> list_runs(const fs::path& folder);

/// The runs that --resume can go on with, in the same order: the interrupted ones; where there is
/// none, the finished ones.
std::vector<RunSummary> resumable(const std::vector<RunSummary>& runs);

/// "step 1,200 of 2,000, interrupted 5 minutes ago".
std::string progress_text(const RunSummary& run);

}  // namespace brrr::train
