#pragma once
// How long another plan of the same workload would take, from what was measured of this one. A
// kernel of the other plan that ran here too (the same op, shapes and types) takes what it took.
// One that did not is tried alone, on random numbers, and corrected by what kernels of its class
// took here in a step and take alone. What is too large to try goes by the model (machine/speed),
// corrected by class in the same way.

#include <map>
#include <string>

#include "insight/profile/profile.h"

namespace brrr::insight {

/// What a plan is, for comparing.
struct PlanFacts {
  int64_t kernels = 0;  // of a step
  double bytes = 0;     // that they move
  double flops = 0;
  double ms = 0;  // of a step
  int64_t tokens = 0;
  double modelled_share = 0;  // of the time that only the model knows
};

class Forecaster {
 public:
  /// `workload` is the one that was profiled; both must outlive this. `trial_bytes` bounds the
  /// memory of a kernel that is tried alone.
  Forecaster(const Profile& profile, const Workload& workload, int64_t trial_bytes);

  PlanFacts here() const;
  PlanFacts of(const Workload& other);

 private:
  struct Measured {
    double seconds = 0;
    int64_t calls = 0;
  };
  double seconds_of(const Program& program, NodeId id, bool* modelled);
  double alone(const Program& program, NodeId id);
  void calibrate();

  const Profile& profile_;
  const Workload& workload_;
  int64_t trial_bytes_;
  std::map<std::string, Measured> here_;            // seconds of a call, by signature
  std::map<std::string, double> trials_;            // alone, by signature
  std::array<double, 7> in_step_{}, from_model_{};  // corrections by class
  double between_seconds_ = 0, run_seconds_ = 0;    // of a kernel, of a program's run
};

}  // namespace brrr::insight
