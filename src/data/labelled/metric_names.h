#pragma once
// The metrics that --metric-for-best-model can name, for each task.

#include <string>
#include <vector>

namespace brrr::io {

/// For the task "classify", "regress", "tokens", "images" or "dpo", the usual one first; for others
/// the loss alone.
inline std::vector<std::string> metric_names(const std::string& task) {
  if (task == "classify")
    return {"accuracy", "f1", "f1_macro", "f1_micro", "precision", "recall", "matthews_correlation",
            "loss"};
  if (task == "regress") return {"pearson", "spearmanr", "mse", "rmse", "mae", "loss"};
  if (task == "tokens") return {"f1", "f1_macro", "precision", "recall", "accuracy", "loss"};
  if (task == "images")
    return {"accuracy", "top5_accuracy",        "f1",  "f1_macro", "f1_micro", "precision",
            "recall",   "matthews_correlation", "loss"};
  if (task == "dpo") return {"loss", "rewards/accuracies", "rewards/margins"};
  return {"loss"};
}

}  // namespace brrr::io
