#include "insight/pages/run_record.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/human.h"
#include "folders/folder_lock.h"
#include "formats/json_file.h"
#include "formats/jsonl.h"
#include "formats/svg_plot.h"
#include "insight/machine/timing.h"
#include "train/options.h"
#include "train/runs/run_list.h"

namespace brrr::insight {
namespace {

using Json = nlohmann::json;

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::optional<double> finite_median(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.empty()) return std::nullopt;
  return timing_of(std::move(values)).median;
}

std::optional<double> mean_of_last(const std::vector<double>& values, size_t count) {
  double sum = 0;
  int64_t n = 0;
  for (size_t i = values.size() - std::min(count, values.size()); i < values.size(); ++i)
    if (std::isfinite(values[i])) sum += values[i], ++n;
  return n > 0 ? std::optional(sum / static_cast<double>(n)) : std::nullopt;
}

/// The metric by which the best checkpoint of a task is chosen (data/labelled/metrics.h).
std::string metric_of(const Json& options) {
  const auto text_of = [&](const char* key) -> std::string {
    const Json value = options.is_object() ? options.value(key, Json()) : Json();
    return value.is_string() ? value.get<std::string>() : "";
  };
  const train::TaskTraits* const task = train::find_task(text_of("task"));
  const std::vector<std::string> known =
      task == nullptr ? std::vector<std::string>{"loss"} : task->metrics;
  const std::string named = text_of("metric_for_best_model");
  const bool is_known = std::ranges::find(known, named) != known.end();
  const std::string& metric = is_known && named != "loss" ? named : known.front();
  return metric == "loss" ? "" : metric;
}

void read_options(RunRecord& run) {
  const fs::path file = run.folder / "train_config.json";
  if (!fs::exists(file)) {
    run.remarks.push_back("train_config.json is missing: the options of the run are unknown");
    return;
  }
  try {
    const std::string text = read_file(file);
    Json options = io::parse_json(text, "train_config.json");
    if (!options.is_object())
      user_error("train_config.json: expected an object, got {}", io::describe(options));
    run.options = std::move(options);
    run.metric = metric_of(run.options);
    train::options_from_json(text, "train_config.json");
  } catch (const UserError& e) {
    run.remarks.push_back(run.options.empty()
                              ? std::string(e.what())
                              : fmt::format("written by another version of Brrr: {}", e.what()));
  }
  if (const auto name = run.options.find("run_name");
      name != run.options.end() && name->is_string() && !name->get<std::string>().empty())
    run.name = name->get<std::string>();
  if (const auto steps = run.options.find("max_steps");
      steps != run.options.end() && steps->is_number_integer())
    run.max_steps = steps->get<int64_t>();
}

void read_log(RunRecord& run) {
  train::RunOutline outline;
  const auto figure = [](const Json& record, const char* name, std::optional<double>& to) {
    if (const auto at = record.find(name);
        record.is_object() && at != record.end() && at->is_number())
      to = finite(at->get<double>());
  };
  std::string first_damage;
  const size_t damaged = io::each_jsonl_record(
      run.folder / "log.jsonl",
      [&](const Json& record) {
        run.history.add_logged(record);
        outline.add(record);  // not from the history, where neighbours become one in time
        figure(record, "parameters", run.parameters);
        figure(record, "loss", run.train_loss);
        if (const auto machine = record.find("machine");
            machine != record.end() && machine->is_string())
          run.machine = machine->get<std::string>();
        if (!run.metric.empty()) figure(record, run.metric.c_str(), run.metric_value);
        figure(record, "skipped_steps", run.skipped_steps);
        if (!outline.is_finished) return;
        const Json figures = record.value("figures", Json::object());
        figure(figures, "seconds", run.seconds);
        figure(figures, "tokens_per_second", run.tokens_per_second);
        figure(figures, "skipped_steps", run.skipped_steps);
        figure(figures, "waiting_share", run.waiting_share);
        figure(figures, "parameters", run.parameters);
        figure(figures, "arena_bytes", run.arena_bytes);
        figure(figures, "process_peak_bytes", run.process_bytes);
      },
      [&](const std::string& what) {
        if (first_damage.empty()) first_damage = what;
      });
  if (damaged > 0)
    run.remarks.push_back(
        fmt::format("{} of log.jsonl could not be read and {} left out: {}",
                    damaged == 1 ? std::string("a line") : fmt::format("{} lines", damaged),
                    damaged == 1 ? "is" : "are", first_damage));
  run.last_step = outline.last_step;
  if (outline.evaluation) {
    run.val_loss = outline.evaluation->loss;
    if (outline.evaluation->tokens > 0) run.val_tokens = outline.evaluation->tokens;
    if (outline.evaluation->set != "final") run.val_set = outline.evaluation->set;
  }
  run.best_val_loss = outline.best_val_loss;
  run.best_step = outline.best_step;
  // A training run holds the lock of its folder.
  run.status = io::FolderLock::is_held(run.folder) ? "running"
               : outline.is_finished               ? "finished"
               : outline.has_failed                ? "failed"
                                                   : "stopped";
}

void read_figures(RunRecord& run) {
  const Columns& steps = run.history.table(RunHistory::steps);
  const std::vector<double>& losses = steps.column("loss");
  run.smoothed_train_loss =
      mean_of_last(io::smoothed(losses, static_cast<int>(losses.size() / 80)), 1);
  run.median_tokens_per_second = finite_median(steps.column("tokens_per_second"));
  if (!run.waiting_share)
    run.waiting_share = mean_of_last(steps.column("waiting_share"), steps.rows());
  const Columns& host = run.history.table(RunHistory::host);
  for (const double v : host.column("process_bytes"))
    if (std::isfinite(v) && !(run.process_bytes > v)) run.process_bytes = v;
  if (!run.arena_bytes) run.arena_bytes = mean_of_last(host.column("arena_bytes"), 1);
}

// What the model wrote at the end; with --sample-steps the log holds it, too.
void read_samples(RunRecord& run) {
  const fs::path file = run.folder / "samples.json";
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return;
  try {
    const Json all = io::parse_json(read_file(file), "samples.json");
    const auto step = all.at("step").get<int64_t>();
    auto texts = all.at("samples").get<std::vector<std::string>>();
    const auto& logged = run.history.samples();
    if (logged.empty() || logged.back().step != step)
      for (std::string& text : texts) run.history.sample(step, std::move(text));
  } catch (const UserError& e) {
    run.remarks.emplace_back(e.what());
  } catch (const Json::exception&) {
    run.remarks.emplace_back("samples.json: expected an object with \"step\" and \"samples\"");
  }
}

// They say nothing about how a run went.
const std::set<std::string>& unimportant() {
  static const std::set<std::string> names = {
      "output_dir",   "run_name",         "resume",           "overwrite",
      "json",         "disable_tqdm",     "report_to",        "live",
      "live_port",    "logging_steps",    "save_total_limit", "samples",
      "sample_steps", "sample_tokens",    "sample_prompt",    "sample_temperature",
      "explain",      "explain_dispatch", "dump_graph",       "config"};
  return names;
}

}  // namespace

RunRecord read_run(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    user_error("{}: there is no such folder; expected the folder of a run", folder.string());
  if (fs::exists(folder / "trainer_state.json", ignored))
    user_error("{} is a checkpoint; expected the run folder that contains it", folder.string());
  if (!fs::exists(folder / "log.jsonl", ignored) &&
      !fs::exists(folder / "train_config.json", ignored))
    user_error(
        "{} holds no run: expected log.jsonl and train_config.json, which `brrr train` writes to "
        "its --output-dir",
        folder.string());
  RunRecord run;
  run.folder = folder;
  run.name = fs::absolute(folder).lexically_normal().filename().string();
  if (run.name.empty())  // "runs/a/"
    run.name = fs::absolute(folder).lexically_normal().parent_path().filename().string();
  read_options(run);
  read_log(run);
  read_figures(run);
  read_samples(run);
  if (run.history.table(RunHistory::steps).rows() == 0)
    run.remarks.push_back("log.jsonl holds no training step");
  return run;
}

void tell_apart(std::vector<RunRecord>& runs) {
  std::map<std::string, int> bearers;
  for (const RunRecord& run : runs) ++bearers[run.name];
  for (RunRecord& run : runs)
    if (bearers[run.name] > 1) run.name += fmt::format(" ({})", run.folder.string());
}

std::string evaluation_note(const std::vector<RunRecord>& runs) {
  std::set<std::string> sets;
  std::vector<std::string> names;
  for (const RunRecord& run : runs) {
    if (!run.val_loss) continue;
    sets.insert(run.val_set);
    names.push_back(run.val_set.empty()
                        ? run.name + " on tokens that its log does not name"
                        : fmt::format("{} on {} (set {})", run.name,
                                      counted(run.val_tokens.value_or(0), "token"), run.val_set));
  }
  if (sets.size() < 2) return "";
  return fmt::format(
      "The validation losses are not measured on the same tokens and cannot be compared: {}.",
      listed(names));
}

std::vector<std::string> differing_options(const std::vector<RunRecord>& runs) {
  std::set<std::string> names;
  for (const RunRecord& run : runs)
    for (const auto& [name, value] : run.options.items())
      for (const RunRecord& other : runs)
        if (!other.options.empty() &&
            (!other.options.contains(name) || other.options[name] != value))
          names.insert(name);
  for (const std::string& name : unimportant()) names.erase(name);
  return {names.begin(), names.end()};
}

std::string option_text(const RunRecord& run, const std::string& name) {
  const auto at = run.options.find(name);
  if (at == run.options.end()) return "";
  if (at->is_string()) return at->get<std::string>();
  return at->dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string report_json(const std::vector<RunRecord>& runs) {
  const auto or_null = [](const std::optional<double>& v) { return v ? Json(*v) : Json(nullptr); };
  Json list = Json::array();
  for (const RunRecord& run : runs) {
    Json j;
    j["folder"] = run.folder.string();
    j["name"] = run.name;
    j["status"] = run.status;
    j["steps"] = run.last_step;
    j["max_steps"] = run.max_steps;
    j["train_loss"] = or_null(run.train_loss);
    j["smoothed_train_loss"] = or_null(run.smoothed_train_loss);
    j["val_loss"] = or_null(run.val_loss);
    j["val_tokens"] = run.val_tokens ? Json(*run.val_tokens) : Json(nullptr);
    j["val_set"] = run.val_set.empty() ? Json(nullptr) : Json(run.val_set);
    j["best_val_loss"] = or_null(run.best_val_loss);
    j["best_step"] = run.best_step;
    if (!run.metric.empty()) j[run.metric] = or_null(run.metric_value);
    j["tokens_per_second"] = or_null(run.tokens_per_second);
    j["median_tokens_per_second"] = or_null(run.median_tokens_per_second);
    j["skipped_steps"] = or_null(run.skipped_steps);
    j["waiting_share"] = or_null(run.waiting_share);
    j["seconds"] = or_null(run.seconds);
    j["parameters"] = or_null(run.parameters);
    j["arena_bytes"] = or_null(run.arena_bytes);
    j["process_peak_bytes"] = or_null(run.process_bytes);
    j["machine"] = run.machine.empty() ? Json(nullptr) : Json(run.machine);
    j["remarks"] = run.remarks;
    j["options"] = run.options;
    RunHistory::Place place;
    Json news = run.history.news(place);
    j["samples"] = news.contains("samples") ? news["samples"] : Json::array();
    j["evaluation_sets"] = news.contains("sets") ? news["sets"] : Json::array();
    j["health"] = news.contains("notes") ? news["notes"] : Json::array();
    j["curves"] = Json::object();
    if (news.contains("tables"))
      for (const auto& [name, table] : news["tables"].items()) j["curves"][name] = table["columns"];
    list.push_back(std::move(j));
  }
  const std::string note = evaluation_note(runs);
  const Json out = {{"runs", std::move(list)},
                    {"differing_options", differing_options(runs)},
                    {"evaluation_note", note.empty() ? Json(nullptr) : Json(note)}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace brrr::insight
