#pragma once
// How many threads the steps of a run use. On a machine that does other work too, a team as large
// as the machine waits in every kernel for its one member that is not running; a smaller team can
// then be many times faster. Results have the same bits for any number of threads, so the choice
// may follow the load while a run goes on. Costs nothing while steps take what they took before.

#include <algorithm>
#include <array>
#include <cstdint>

namespace brrr::train {

class TeamSize {
 public:
  explicit TeamSize(int most) : sizes_{most, std::max(1, most / 2), 1} {}

  /// Threads for the next step.
  int threads() const { return sizes_[trial_ >= 0 ? static_cast<size_t>(trial_) : chosen_]; }

  /// What that step took. Steps of a run are alike, so their times can be compared.
  void record(double seconds) {
    if (trial_ >= 0) {
      trial_seconds_ += seconds;
      if (--trial_steps_ > 0) return;
      results_[static_cast<size_t>(trial_)] = trial_seconds_ / kTrialSteps;
      next_trial();
      return;
    }
    ++steps_;
    recent_ = recent_ == 0 ? seconds : 0.8 * recent_ + 0.2 * seconds;
    fastest_ = std::min(fastest_, recent_);
    const bool slow = recent_ > kSlow * fastest_;
    const bool due = steps_ >= (chosen_ == 0 ? kPatience : kReturn);
    // The first trial comes early: a machine that is loaded from the start looks slow to nobody.
    if (sizes_[0] > 1 && (steps_ == kFirst || (slow && due) || (chosen_ != 0 && due)))
      start_trials();
  }

 private:
  static constexpr double kSlow = 1.5;  // times the fastest
  static constexpr double kGain = 0.9;  // a smaller team must take at most this share
  static constexpr int kFirst = 3;      // steps before the first trial
  static constexpr int kPatience = 30;  // between trials of a full team that has become slow
  static constexpr int kReturn = 100;   // of a smaller team, before the full one is tried again
  static constexpr int kTrialSteps = 3;

  void start_trials() {
    results_ = {kNever, kNever, kNever};
    trial_ = -1;
    next_trial();
  }
  void next_trial() {
    ++trial_;
    while (trial_ < 3 && trial_ > 0 &&
           sizes_[static_cast<size_t>(trial_)] == sizes_[static_cast<size_t>(trial_ - 1)])
      ++trial_;
    if (trial_ < 3) {
      trial_steps_ = kTrialSteps;
      trial_seconds_ = 0;
      return;
    }
    trial_ = -1;
    chosen_ = 0;
    for (size_t i = 1; i < 3; ++i)
      if (results_[i] < kGain * results_[chosen_]) chosen_ = i;
    steps_ = kFirst;  // the early trial is over
    recent_ = 0;
    fastest_ = results_[chosen_];
  }

  static constexpr double kNever = 1e300;
  std::array<int, 3> sizes_;
  size_t chosen_ = 0;
  int trial_ = -1, trial_steps_ = 0;
  std::array<double, 3> results_{};
  double trial_seconds_ = 0, recent_ = 0, fastest_ = kNever;
  int64_t steps_ = 0;
};

}  // namespace brrr::train
