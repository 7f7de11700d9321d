#include "train/runs/run_list.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/human.h"
#include "folders/checkpoint.h"
#include "folders/folder_lock.h"
#include "formats/json_file.h"
#include "formats/jsonl.h"
#include "train/health.h"

namespace brrr::train {
namespace {

constexpr const char *kRecord = "train_config.json", *kLog = "log.jsonl";

double seconds_since_write(const fs::path& run) {
  fs::file_time_type latest = fs::file_time_type::min();
  std::vector<fs::path> written{run / kRecord, run / kLog};
  const auto checkpoints = io::list_checkpoints(run);
  if (!checkpoints.empty()) written.push_back(checkpoints.back().folder);
  for (const fs::path& path : written) {
    std::error_code absent;
    const auto time = fs::last_write_time(path, absent);
    if (!absent) latest = std::max(latest, time);
  }
  const std::chrono::duration<double> age = fs::file_time_type::clock::now() - latest;
  return std::max(0.0, age.count());
}

/// Throws UserError for a record that says nothing.
void read_record(const fs::path& run, RunSummary& summary) {
  const fs::path file = run / kRecord;
  const nlohmann::json record = io::parse_json(read_file(file), file.string());
  if (!record.is_object())
    user_error("{}: expected an object, got {}", file.string(), io::describe(record));
  const auto text = [&](const char* key) {
    const auto at = record.find(key);
    return at != record.end() && at->is_string() ? at->get<std::string>() : "";
  };
  summary.preset = text("preset");
  summary.architecture = text("architecture");
  if (const auto steps = record.find("max_steps");
      steps != record.end() && steps->is_number_integer())
    summary.max_steps = steps->get<int64_t>();
}

}  // namespace

std::optional<LoggedEvaluation> logged_evaluation(const nlohmann::json& record) {
  for (const char* name : {"val_loss", "final_val_loss"}) {
    const auto loss = record.find(name);
    if (loss == record.end() || !(loss->is_number() || loss->is_null())) continue;
    LoggedEvaluation evaluation;
    evaluation.loss = loss->is_null() ? std::nan("") : loss->get<double>();  // JSON has no NaN
    if (const auto tokens = record.find("val_tokens");
        tokens != record.end() && tokens->is_number())
      evaluation.tokens = static_cast<int64_t>(std::clamp(tokens->get<double>(), 0.0, 1e15));
    const auto set = record.find("val_set");
    if (set != record.end() && set->is_string())
      evaluation.set = set->get<std::string>();
    else if (name == std::string_view("final_val_loss"))
      evaluation.set = "final";
    return evaluation;
  }
  return std::nullopt;
}

void RunOutline::add(const nlohmann::json& record) {
  using Json = nlohmann::json;
  int64_t at = 0;
  if (const auto step = record.find("step"); step != record.end() && step->is_number())
    at = static_cast<int64_t>(std::clamp(step->get<double>(), 0.0, 1e15));
  last_step = std::max(last_step, at);
  if (const auto now = logged_evaluation(record)) {
    // Losses on other tokens cannot be compared with those before.
    if (evaluation && evaluation->set != now->set && std::isfinite(now->loss)) {
      best_val_loss.reset();
      best_step = -1;
    }
    evaluation = now;
    if (std::isfinite(now->loss) && !(best_val_loss && *best_val_loss <= now->loss)) {
      best_val_loss = now->loss;
      best_step = at;
    }
  }
  const auto end = record.find("finished");
  is_finished = end != record.end() && *end == true;
  has_failed = record.value("health", Json()) == name_of(Ailment::non_finite);
}

std::vector<std::string> logged_samples(const nlohmann::json& record) {
  std::vector<std::string> texts;
  const auto at = record.find("samples");
  if (at == record.end() || !at->is_array()) return texts;
  for (const nlohmann::json& text : *at)
    if (text.is_string()) texts.push_back(text.get<std::string>());
  return texts;
}

std::string_view name_of(RunState state) {
  switch (state) {
    case RunState::finished:
      return "finished";
    case RunState::interrupted:
      return "interrupted";
    case RunState::running:
      return "running";
    case RunState::unsaved:
      return "stopped before its first checkpoint";
    case RunState::broken:
      return "broken";
  }
  return "";
}

bool is_run(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored) || fs::exists(folder / "trainer_state.json", ignored))
    return false;  // a checkpoint has the record of its run, too
  return fs::exists(folder / kRecord, ignored) || fs::exists(folder / kLog, ignored);
}

RunSummary summary_of(const fs::path& run) {
  RunSummary summary;
  summary.folder = run;
  summary.age_seconds = seconds_since_write(run);
  const auto checkpoints = io::list_checkpoints(run);
  summary.has_checkpoint = !checkpoints.empty();
  RunOutline outline;
  try {
    read_record(run, summary);
    io::each_jsonl_record(
        run / kLog, [&](const nlohmann::json& record) { outline.add(record); },
        [](const std::string&) {});
  } catch (const UserError& e) {
    summary.fault = e.what();
  }
  summary.step = outline.last_step;
  summary.best_val_loss = outline.best_val_loss;
  if (io::FolderLock::is_held(run)) {
    summary.state = RunState::running;
  } else if (!summary.fault.empty()) {
    summary.state = RunState::broken;
  } else if (outline.is_finished) {
    summary.state = RunState::finished;
  } else if (summary.has_checkpoint) {
    summary.state = RunState::interrupted;
    summary.step = checkpoints.back().step;
  } else if (outline.has_failed) {
    summary.fault = "its loss became NaN before its first checkpoint";
  } else {
    summary.state = RunState::unsaved;
  }
  return summary;
}

std::vector<RunSummary> list_runs(const fs::path& folder) {
  std::vector<RunSummary> runs;
  if (is_run(folder)) {
    runs.push_back(summary_of(folder));
    return runs;
  }
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(folder, absent))
    if (is_run(entry.path())) runs.push_back(summary_of(entry.path()));
  std::sort(runs.begin(), runs.end(), [](const RunSummary& a, const RunSummary& b) {
    return a.age_seconds != b.age_seconds ? a.age_seconds < b.age_seconds : a.folder < b.folder;
  });
  return runs;
}

std::vector<RunSummary> resumable(const std::vector<RunSummary>& runs) {
  for (const RunState state : {RunState::interrupted, RunState::finished}) {
    std::vector<RunSummary> chosen;
    std::copy_if(runs.begin(), runs.end(), std::back_inserter(chosen),
                 [&](const RunSummary& run) { return run.state == state && run.has_checkpoint; });
    if (!chosen.empty()) return chosen;
  }
  return {};
}

std::string progress_text(const RunSummary& run) {
  return fmt::format("step {}{}, {} {}", with_commas(run.step),
                     run.max_steps > 0 ? " of " + with_commas(run.max_steps) : "",
                     name_of(run.state), ago(run.age_seconds));
}

}  // namespace brrr::train
