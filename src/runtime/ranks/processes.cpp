#include "runtime/ranks/processes.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>

#include <fmt/format.h>

#include "base/system_text.h"

namespace brrr {
namespace {

struct ProcessState {
  char letter = 0;  // 'R', 'S', 'T', 'Z', ...; 0: no such process, or no /proc
  uint64_t start_ticks = 0;
};

/// Parses /proc/PID/stat: "PID (NAME) STATE ...", where NAME may contain any characters.
ProcessState state_of(int32_t pid) {
  const std::string text = system_text::read_or_empty(fmt::format("/proc/{}/stat", pid));
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return {};
  std::string_view rest = std::string_view(text).substr(name_end + 2);
  ProcessState state{.letter = rest[0]};
  constexpr int kStartTime = 22, kState = 3;  // the numbers of the fields in proc(5)
  for (int field = kState; field < kStartTime; ++field) {
    const size_t space = rest.find(' ');
    if (space == std::string_view::npos) return state;
    rest.remove_prefix(space + 1);
  }
  state.start_ticks = static_cast<uint64_t>(system_text::number(rest).value_or(0));
  return state;
}

}  // namespace

ProcessName own_process() {
  const auto pid = static_cast<int32_t>(::getpid());
  return {pid, state_of(pid).start_ticks};
}

bool has_ended(const ProcessName& process) {
  if (::kill(process.pid, 0) != 0 && errno == ESRCH) return true;
  const ProcessState state = state_of(process.pid);
  if (state.letter == 0) return false;  // there is no /proc to ask
  return state.letter == 'Z' || state.letter == 'X' ||
         (process.start_ticks != 0 && state.start_ticks != process.start_ticks);
}

char process_state(int32_t pid) { return state_of(pid).letter; }

ProcessWatch::ProcessWatch(const ProcessName& process) : process_(process) {
#ifdef SYS_pidfd_open
  fd_ = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
#endif
  // The descriptor may belong to a later process with the same number.
  ended_ = has_ended(process);
}

ProcessWatch::~ProcessWatch() {
  if (fd_ >= 0) ::close(fd_);
}

bool ProcessWatch::ended() const {
  if (ended_) return true;
  if (fd_ < 0) return has_ended(process_);
  pollfd event{.fd = fd_, .events = POLLIN, .revents = 0};
  return ::poll(&event, 1, 0) > 0;
}

uint64_t process_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "this host";
  return name;
}

}  // namespace brrr
