#pragma once
// Monotonic time.

#include <chrono>
#include <cstdint>

namespace brrr {

/// Seconds on the monotonic clock.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Ticks of the processor's time-stamp counter: cheaper to read than the clock, of unknown rate,
/// and almost synchronous between cores. Reading it and the clock twice gives its rate
/// (runtime/timeline.h).
inline uint64_t clock_ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();  // not <x86intrin.h>: every file would parse it
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
