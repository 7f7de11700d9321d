#include "train/runs/result_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/json_file.h"

namespace brrr::train {
namespace {

nlohmann::json or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

}  // namespace

nlohmann::json figures_for_log(const TrainResult& r) {
  return {{"seconds", r.seconds},
          {"tokens_per_second", r.tokens_per_second},
          {"samples_per_second", r.samples_per_second},
          {"waiting_share", r.waiting_share},
          {"parameters", r.parameters},
          {"skipped_steps", r.skipped_steps},
          {"arena_bytes", r.arena_bytes},
          {"process_peak_bytes", r.process_peak_bytes}};
}

std::string result_json(const TrainResult& r) {
  nlohmann::json j;
  j["run_dir"] = r.run_dir.string();
  j["steps"] = r.steps;
  j["train_loss"] = or_null(r.train_loss);
  j["val_loss"] = or_null(r.val_loss);
  j["val_tokens"] = r.val_tokens;
  j["best_val_loss"] = or_null(r.best_val_loss);
  j["best_step"] = r.best_step;
  j["seconds"] = r.seconds;
  j["tokens_per_second"] = r.tokens_per_second;
  j["recent_step_ms"] = r.recent.step_ms;
  j["recent_tokens_per_second"] = r.recent.tokens_per_second;
  j["first_step_seconds"] = r.first_step_seconds;
  j["compile_seconds"] = r.compile_seconds;
  j["waiting_share"] = r.waiting_share;
  j["parameters"] = r.parameters;
  j["skipped_steps"] = r.skipped_steps;
  j["samples"] = r.samples;
  j["samples_step"] = r.samples_step;
  j["health"] = nlohmann::json::array();
  for (const HealthNote& n : r.health)
    j["health"].push_back({{"step", n.step}, {"kind", name_of(n.ailment)}, {"text", n.text}});
  j["forecast_arena_bytes"] = r.forecast.total();
  j["arena_bytes"] = r.arena_bytes;
  j["forecast_process_bytes"] = r.process_forecast.resident();
  j["process_peak_bytes"] = r.process_peak_bytes;
  j["forecast_needed_bytes"] = r.process_forecast.needed();
  j["needed_peak_bytes"] = r.needed_peak_bytes;
  j["samples_per_second"] = r.samples_per_second;
  for (const io::Metric& m : r.metrics) j[m.name] = or_null(m.value);
  j["ends_with_best"] = r.ends_with_best;
  j["batch_size"] = r.options.batch_size;
  j["gradient_accumulation_steps"] = r.options.gradient_accumulation_steps;
  return io::json_line(j);
}

}  // namespace brrr::train
