#pragma once
// Which regime the steps of a run are in, at next to no cost: a step now and then is timed kernel
// by kernel, and each kernel is held against what this machine was measured to reach (verdict.h).

#include <map>
#include <optional>
#include <utility>

#include "insight/profile/verdict.h"
#include "runtime/timeline.h"
#include "train/run_watch.h"

namespace brrr::insight {

class RegimeMeter {
 public:
  explicit RegimeMeter(Ceilings ceilings) : ceilings_(std::move(ceilings)) {}

  /// Of the next step, or null: one step in twenty at most, and one in two seconds.
  Timeline* timeline();
  /// How the step divides that timeline() was given for.
  train::RegimeShares shares(double step_seconds, double waited_seconds);

 private:
  static constexpr int kEverySteps = 20;
  static constexpr double kEverySeconds = 2;
  const Work& work(const Program& program, NodeId node);

  Ceilings ceilings_;
  Timeline timeline_;
  std::map<std::pair<const Program*, NodeId>, Work> works_;
  int steps_ = kEverySteps - 3;  // since the last; the first steps of a run are not like others
  double last_ = 0;
};

}  // namespace brrr::insight
