#pragma once
// What the system knows of this process: signals, age, peak memory.

#include <cstdint>

namespace brrr::machine {

/// While it lives, SIGINT, SIGTERM and SIGHUP are remembered instead of ending the process; the
/// first one says so, a later one ends the process at once. What comes within a second of the first
/// is taken for the same: `timeout` and terminals send twice. A signal that the parent ignores
/// (nohup) stays ignored. One guard at a time.
class SignalGuard {
 public:
  SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  ~SignalGuard();
  /// The signal that came, or 0.
  static int received();
};

/// Seconds since the process was started, a shell script that became this program included.
double process_age_seconds();

}  // namespace brrr::machine
