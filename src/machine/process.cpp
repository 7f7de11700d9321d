#include "machine/process.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>
#include <string>

#include "base/env.h"
#include "base/system_text.h"

namespace brrr::machine {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
constexpr int64_t kSameNanoseconds = 1'000'000'000;

// Atomic because the operating system may run the handler on any thread.
std::atomic<int> g_signal = 0;
// Time of the first signal in nanoseconds; 0 until the handler has stored it.
std::atomic<int64_t> g_first = 0;
std::atomic<const char*> g_notice = "";
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);
struct sigaction g_old[std::size(kSignals)];

// Handles a signal. It may call only async-signal-safe functions.
void remember(int signal) {
  const int saved_errno = errno;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t at = now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  int none = 0;
  if (g_signal.compare_exchange_strong(none, signal)) {
    g_first = at;
    for (const char* text : {"\n", g_notice.load(), "\n"})
      if (write(STDERR_FILENO, text, std::strlen(text)) < 0) break;  // the terminal may be gone
  } else if (const int64_t first = g_first; first != 0 && at - first >= kSameNanoseconds) {
    _exit(128 + signal);
  }
  errno = saved_errno;
}

}  // namespace

SignalGuard::SignalGuard(const char* notice) {
  g_notice = notice;
  g_first = 0;
  g_signal = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) sigaddset(&action.sa_mask, signal);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &g_old[i]);
    if (g_old[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

SignalGuard::~SignalGuard() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &g_old[i], nullptr);
}

int SignalGuard::received() { return g_signal; }

double process_age_seconds() {
  const std::string text = system_text::read_or_empty("/proc/self/stat");
  const size_t end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return 0;
  std::istringstream fields(text.substr(end_of_name + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i)
    fields >> field;  // field 22 of proc(5): start time in ticks since boot
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double started =
      std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
  const std::string building = env::get("BRRR_BUILD_SECONDS").value_or("0");
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - started -
         std::strtod(building.c_str(), nullptr);
}

}  // namespace brrr::machine
