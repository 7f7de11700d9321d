#pragma once
// What the system knows of this process: signals, age, peak memory.

#include <cstdint>

namespace brrr::machine {

/// While it exists, SIGINT, SIGTERM and SIGHUP are recorded instead of ending the process: the
/// first one prints `notice` on stderr, a later one ends the process at once. Signals within a
/// second of the first are ignored, because `timeout` and terminals send them twice. A signal that
/// the parent ignores (nohup) stays ignored. Only one guard may exist at a time.
class SignalGuard {
 public:
  /// `notice` is a string literal without line breaks.
  explicit SignalGuard(const char* notice);
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  ~SignalGuard();
  /// The signal that came, or 0.
  static int received();
};

/// Seconds since the process was started, a shell script that became this program included.
double process_age_seconds();

}  // namespace brrr::machine
