#include "cli/stop_guard.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/clock.h"

namespace brrr::cli {
namespace {

std::atomic<int> g_signal = 0;
std::atomic<double> g_at = 0;  // when the first came; 0: it is just coming
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<double>::is_always_lock_free);

// Only what a signal handler may call. What comes within a second of the first is the same one:
// `timeout` and terminals send twice.
void note_signal(int signal) {
  const int saved_errno = errno;
  int none = 0;
  if (g_signal.compare_exchange_strong(none, signal)) {
    g_at = now_seconds();
    constexpr char kText[] =
        "\nstopping after this measurement; press Ctrl-C again to stop at once\n";
    if (write(STDERR_FILENO, kText, sizeof(kText) - 1) < 0) {
      // The terminal is gone; what was measured is kept all the same.
    }
  } else if (const double at = g_at; at > 0 && now_seconds() - at > 1) {
    _exit(128 + signal);
  }
  errno = saved_errno;
}

}  // namespace

StopGuard::StopGuard() {
  g_at = 0;
  g_signal = 0;
  struct sigaction action {};
  action.sa_handler = note_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &old_[i]);
    if (old_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

StopGuard::~StopGuard() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &old_[i], nullptr);
}

int StopGuard::signal() { return g_signal; }

}  // namespace brrr::cli
