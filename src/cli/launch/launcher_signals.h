#pragma once
// The signals of a launcher while it waits for the processes that it started: SIGINT, SIGTERM and
// SIGHUP, which it passes on to them, and SIGCHLD. They are blocked and read from a descriptor.

#include <csignal>
#include <functional>

namespace brrr::cli {

class LauncherSignals {
 public:
  /// Blocks the signals; the destructor restores the mask.
  LauncherSignals();
  LauncherSignals(const LauncherSignals&) = delete;
  LauncherSignals& operator=(const LauncherSignals&) = delete;
  ~LauncherSignals();

  /// Can be read while a signal is pending.
  int descriptor() const { return descriptor_; }
  /// Reads all pending signals. Calls `pass_on` for each that asks this process to end, unless a
  /// terminal sent it: the terminal sends it to the other processes of the group, too.
  void read(const std::function<void(int signal)>& pass_on);
  /// The last signal that asked this process to end; 0: none came.
  int last() const { return last_; }
  /// Exit code of the launcher after a process that ended with `code`. After a signal N it is
  /// 128 + N, whatever code mpirun makes of the signal; 0 stays 0.
  int exit_code(int code) const { return code != 0 && last_ != 0 ? 128 + last_ : code; }

  /// To be called in a child after fork(): restores the mask of the launcher's start.
  void restore_mask() const { ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr); }

 private:
  sigset_t mask_before_{};
  int descriptor_ = -1, last_ = 0;
};

}  // namespace brrr::cli
