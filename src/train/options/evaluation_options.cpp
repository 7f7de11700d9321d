#include "train/options/evaluation_options.h"

#include <algorithm>

#include "base/human.h"
#include "data/labelled/metrics.h"

namespace brrr::train {

void fill_evaluation(TrainOptions& o) {
  if (o.skips_validation() && !o.was_given("load-best-model-at-end"))
    o.load_best_model_at_end = false;
}

void validate_evaluation(const TrainOptions& o) {
  if (o.load_best_model_at_end && o.skips_validation())
    usage_error(
        "--load-best-model-at-end needs validation data, and --val-fraction 0 leaves none: drop "
        "one "
        "of them");
  const std::vector<std::string>& known = traits_of(o).metrics;
  const std::string& metric =
      o.metric_for_best_model.empty() ? known.front() : o.metric_for_best_model;
  const std::string of =
      o.task == TrainTask::text ? "a run without --task" : fmt::format("--task {}", o.task);
  if (std::ranges::find(known, metric) == known.end())
    usage_error("--metric-for-best-model: expected one of {} for {}; got '{}'", listed(known), of,
                metric);
  if (o.greater_is_better && *o.greater_is_better == io::is_lower_better(metric))
    usage_error("--greater-is-better: expected {}, because the best weights of {} are told by {}",
                io::is_lower_better(metric) ? "false" : "true", of, metric);
}

std::string unread_validation(const std::string& data) {
  return fmt::format("the validation set of {} is not read, because --val-fraction is 0", data);
}

}  // namespace brrr::train
