#pragma once
// Monotonic time.

#include <chrono>

namespace brrr {

/// Seconds on the monotonic clock.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Stopwatch {
 public:
  double seconds() const { return now_seconds() - start_; }
  double milliseconds() const { return 1e3 * seconds(); }
  void restart() { start_ = now_seconds(); }

 private:
  double start_ = now_seconds();
};

}  // namespace brrr
