#pragma once
// What the evaluations of brrr eval share: their progress and their JSON.

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/terminal/progress.h"
#include "formats/json_file.h"
#include "infer/options.h"

namespace brrr::cli {

/// Progress that appears with its first step.
class EvalProgress {
 public:
  explicit EvalProgress(const infer::EvalOptions& options) : is_plain_(options.disable_tqdm) {}
  void update(int64_t done, int64_t total) {
    if (!progress_) {
      ProgressOptions p;
      p.label = "eval";
      p.total = total;
      p.plain_interval_seconds = 5;
      if (is_plain_) p.is_terminal = false;
      progress_.emplace(std::move(p));
    }
    progress_->update(done);
  }
  void finish() {
    if (progress_) progress_->finish();
  }

 private:
  bool is_plain_;
  std::optional<Progress> progress_;
};

inline void print_eval_json(const nlohmann::ordered_json& j) {
  fmt::print("{}\n", io::json_line(j));
}

/// null if it is not finite.
inline nlohmann::ordered_json json_number(double x) {
  return std::isfinite(x) ? nlohmann::ordered_json(x) : nlohmann::ordered_json();
}

}  // namespace brrr::cli
