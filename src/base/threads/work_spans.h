#pragma once
// Which thread worked when, for traces. Spans are kept only between start_work_spans() and
// stop_work_spans(); at other times a thread of the team pays for one load.

#include <atomic>
#include <cstddef>
#include <vector>

#include "base/clock.h"

namespace brrr {

struct WorkSpan {
  size_t thread = 0;  // 0 is the one that started the recording, others by their first span
  const char* what = "";
  double start = 0, seconds = 0;  // on the monotonic clock
};

/// Spans that begin from now on are kept; those that were kept before are forgotten.
void start_work_spans();
/// Those that have ended, in the order of their ends.
std::vector<WorkSpan> stop_work_spans();

namespace work_spans {
inline constinit std::atomic<bool> are_kept{false};
void add(const char* what, double start);
}  // namespace work_spans

/// A span from here to the end of the scope. `what` outlives the recording.
class WorkClock {
 public:
  explicit WorkClock(const char* what)
      : what_(work_spans::are_kept.load(std::memory_order_relaxed) ? what : nullptr),
        start_(what_ != nullptr ? now_seconds() : 0) {}
  WorkClock(const WorkClock&) = delete;
  WorkClock& operator=(const WorkClock&) = delete;
  ~WorkClock() {
    if (what_ != nullptr) work_spans::add(what_, start_);
  }

 private:
  const char* what_;
  double start_;
};

}  // namespace brrr
