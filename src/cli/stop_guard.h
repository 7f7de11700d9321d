#pragma once
// StopGuard: Ctrl-C ends a long measurement after the part that is being taken, a second one at
// once.

#include <signal.h>

#include <array>

namespace brrr::cli {

/// While it lives, SIGINT, SIGTERM and SIGHUP are noted, and said on stderr; a second one ends the
/// process. One at a time.
class StopGuard {
 public:
  StopGuard();
  StopGuard(const StopGuard&) = delete;
  StopGuard& operator=(const StopGuard&) = delete;
  ~StopGuard();

  /// The signal that came while the last one lived; 0: none.
  static int signal();

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> old_;
};

}  // namespace brrr::cli
