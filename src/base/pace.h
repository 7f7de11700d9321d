#pragma once
// How fast a job goes and when it will be done. Log lines, the bar, the live page and the summary
// of a run take these figures from here, so they agree. Not thread-safe.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace brrr {

/// The pace of recent steps.
struct Pace {
  double step_ms = 0, tokens_per_second = 0;  // medians: one slow step does not move them
  double waiting_share = 0;                   // of the time of these steps, for data
};

/// Keeps the last kSteps steps. The first step of all may have compiled and warmed up: it counts
/// only while there is no other.
class RecentSteps {
 public:
  static constexpr size_t kSteps = 50;

  void add(double seconds, double waited, int64_t tokens) {
    if (added_ == 1) count_ = 0;
    const size_t at = count_ < kSteps ? count_++ : added_ % kSteps;
    steps_[at] = {seconds, waited, static_cast<double>(tokens)};
    ++added_;
  }

  Pace pace() const {
    std::vector<double> ms, rates;
    double seconds = 0, waited = 0;
    for (size_t i = 0; i < count_; ++i) {
      const Step& s = steps_[i];
      ms.push_back(1e3 * s.seconds);
      rates.push_back(s.seconds > 0 ? s.tokens / s.seconds : 0);
      seconds += s.seconds;
      waited += s.waited;
    }
    return {median(std::move(ms)), median(std::move(rates)), seconds > 0 ? waited / seconds : 0};
  }

 private:
  struct Step {
    double seconds, waited, tokens;
  };
  static double median(std::vector<double> values) {
    if (values.empty()) return 0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (values.size() % 2 == 1) return *middle;
    return (*middle + *std::max_element(values.begin(), middle)) / 2;
  }
  std::array<Step, kSteps> steps_{};
  size_t count_ = 0, added_ = 0;
};

/// The time to the end of a job, from its pace so far with everything that happens between steps.
/// What came before the first note (compiling, a first step that warms up) is no part of the pace.
class TimeLeft {
 public:
  /// Before both of these have passed since the first note, an estimate is worth nothing.
  static constexpr int64_t kLeastSteps = 5;
  static constexpr double kLeastSeconds = 2;

  explicit TimeLeft(int64_t total, std::function<double()> now = now_seconds)
      : total_(total), now_(std::move(now)) {}

  /// `done` of total are done.
  void note(int64_t done) {
    done_ = done;
    if (is_begun_) return;
    is_begun_ = true;
    first_done_ = done;
    first_at_ = now_();
  }
  bool is_begun() const { return is_begun_; }

  std::optional<double> units_per_second() const {
    const double seconds = now_() - first_at_;
    if (!is_begun_ || done_ <= first_done_ || seconds <= 0) return std::nullopt;
    return static_cast<double>(done_ - first_done_) / seconds;
  }

  /// Nothing where the end is not known, or not yet worth saying.
  std::optional<double> seconds() const {
    if (!is_begun_ || total_ <= 0) return std::nullopt;
    if (done_ >= total_) return 0;
    if (done_ - first_done_ < kLeastSteps || now_() - first_at_ < kLeastSeconds)
      return std::nullopt;
    return static_cast<double>(total_ - done_) / *units_per_second();
  }

 private:
  int64_t total_, done_ = 0, first_done_ = 0;
  std::function<double()> now_;
  double first_at_ = 0;
  bool is_begun_ = false;
};

}  // namespace brrr
