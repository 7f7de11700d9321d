#pragma once
// A run as its folder tells it: log, options, final figures. It may be finished, going on, or have
// been stopped anywhere; another version of Brrr may have written it.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "insight/pages/run_history.h"

namespace brrr::insight {

struct RunRecord {
  fs::path folder;
  std::string name;
  std::string status;  // "finished", "running", "stopped", "failed"
  int64_t last_step = 0;
  int64_t max_steps = 0;                              // 0: not known
  nlohmann::json options = nlohmann::json::object();  // as they stand in train_config.json
  RunHistory history;

  // Final figures; what is not known is absent.
  std::optional<double> train_loss;           // of the last logged step
  std::optional<double> smoothed_train_loss;  // where the smoothed curve ends
  std::optional<double> val_loss;             // the last one; NaN where it was not finite
  std::optional<int64_t> val_tokens;          // that it was measured on
  std::string val_set;  // Score::set of these tokens; "" where an older version wrote the log
  std::optional<double> best_val_loss;  // of the evaluations on the same tokens
  int64_t best_step = -1;
  /// What a task is judged by: "accuracy", "pearson" or "f1", and its last value; "": no task.
  std::string metric;
  std::optional<double> metric_value;
  std::optional<double> tokens_per_second;         // on average, as the run says at its end
  std::optional<double> median_tokens_per_second;  // of the logged steps
  std::optional<double> skipped_steps;             // f16 gradients overflowed
  std::optional<double> waiting_share;
  std::optional<double> seconds, parameters, arena_bytes, process_bytes;
  std::string machine;  // of its last process: "cpu:avx512, 2 threads of AMD EPYC 9B14", or ""
  /// What could not be read, a line each, without the folder's name.
  std::vector<std::string> remarks;
};

/// Throws UserError for a folder that holds no run.
RunRecord read_run(const fs::path& folder);

/// Names that several runs have get their folders beside them.
void tell_apart(std::vector<RunRecord>& runs);

/// Which runs were evaluated on other tokens than others, so that their validation losses cannot be
/// compared; "" where all are on the same.
std::string evaluation_note(const std::vector<RunRecord>& runs);

/// Options whose values are not the same in all runs, by name; those that are only about places and
/// logging are left out.
std::vector<std::string> differing_options(const std::vector<RunRecord>& runs);
/// The value of an option for people; "" where the run does not have it.
std::string option_text(const RunRecord& run, const std::string& name);

/// One object with all of it, the curves too.
std::string report_json(const std::vector<RunRecord>& runs);

}  // namespace brrr::insight
