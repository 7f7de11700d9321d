#pragma once
// What would help most. Each piece of advice is the answer to "what if this option were another":
// the other plan is compiled and its time reckoned from what was measured here (forecast.h), or,
// for what is no matter of plans (the loader, evaluation), from clocks. What promises something
// and fits beside the present plan is then tried: a few steps of both in turn (race.h).

#include <functional>
#include <string>
#include <vector>

#include "insight/profile/forecast.h"

namespace brrr::insight {

struct AdviceOptions {
  WorkloadOptions workload;  // what was profiled
  bool fixed_model = false;  // its sizes belong to weights
  int64_t budget = 0;        // bytes that the process may use
  bool trials = true;        // of kernels, plans, numbers of threads; false: by the model only
  /// Told, in a line, what is tried next.
  std::function<void(const std::string& line)> say = {};
};

/// Another plan that is worth a look.
struct Candidate {
  std::string cause, what, option;
  KeyValues change;
  train::TrainOptions options;
};
/// The plans that differ in one option, by what the profile and the machine give reason for.
std::vector<Candidate> candidates(const Profile& profile, const AdviceOptions& options);

/// All that gains more than 1%, the most first. `workload` is the one that was profiled.
std::vector<Advice> advise(const Profile& profile, Workload& workload,
                           const AdviceOptions& options);

/// The sentence for people: "... : 34% less time with --compile".
std::string sentence(const Advice& advice);

}  // namespace brrr::insight
