#pragma once
// Learning rate over the steps of a run.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "base/errors.h"

namespace brrr::optim {

enum class ScheduleKind { cosine, linear, constant, constant_with_warmup, relative_step };

struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double peak = 1e-3, floor = 1e-4;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // the floor is reached here

  /// Rate of the step `step`, counted from 0. Warm-up is linear and never 0 (nanoGPT's form).
  double at(int64_t step) const {
    if (kind == ScheduleKind::constant) return peak;
    if (kind == ScheduleKind::relative_step)  // Shazeer and Stern 2018, section 8
      return std::min(1e-2, 1 / std::sqrt(static_cast<double>(step + 1)));
    if (step < warmup_steps)
      return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps + 1);
    if (kind == ScheduleKind::constant_with_warmup) return peak;
    if (step >= decay_steps) return floor;
    const double done = static_cast<double>(step - warmup_steps) /
                        static_cast<double>(std::max<int64_t>(1, decay_steps - warmup_steps));
    const double share = kind == ScheduleKind::linear
                             ? 1 - done
                             : 0.5 * (1 + std::cos(3.14159265358979323846 * done));
    return floor + share * (peak - floor);
  }
};

inline ScheduleKind schedule_kind(const std::string& name) {
  if (name == "cosine") return ScheduleKind::cosine;
  if (name == "linear") return ScheduleKind::linear;
  if (name == "constant") return ScheduleKind::constant;
  if (name == "constant_with_warmup") return ScheduleKind::constant_with_warmup;
  usage_error(
      "lr_scheduler_type must be cosine, linear, constant or constant_with_warmup; got '{}'", name);
}

}  // namespace brrr::optim
