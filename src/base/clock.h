#pragma once
// Monotonic time.

#include <chrono>
#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace brrr {

/// Seconds on the monotonic clock.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Ticks of the processor's counter: cheaper to read than the clock, of no known rate, and almost
/// in step from core to core. Two looks at both tell the rate between them (runtime/timeline.h).
inline uint64_t clock_ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
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
