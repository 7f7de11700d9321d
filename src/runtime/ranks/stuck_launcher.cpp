#include "runtime/ranks/stuck_launcher.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>

#include <fmt/format.h>

#include "base/env.h"
#include "base/system_text.h"

namespace brrr::ranks {
namespace {

constexpr int kEndsByItselfMs = 1500;

bool is_of_mpi(pid_t process) {
  const std::string name =
      system_text::read_or_empty(fmt::format("/proc/{}/comm", static_cast<int>(process)));
  constexpr const char* kNames[] = {
      "mpirun",  "mpiexec",        "orterun",         "orted",         "prte",        "prted",
      "prterun", "mpirun.openmpi", "hydra_pmi_proxy", "mpiexec.hydra", "mpirun.mpich"};
  return std::ranges::any_of(
      kNames, [&](const char* known) { return system_text::trimmed(name) == known; });
}

#if defined(SYS_pidfd_open) && defined(SYS_pidfd_send_signal) && defined(SYS_close_range)

/// The folders of Open MPI's files: of this job, and of all jobs on this host.
struct SessionFolders {
  std::string job = env::get("OMPI_MCA_orte_jobfam_session_dir").value_or("");
  std::string host = env::get("OMPI_MCA_orte_top_session_dir").value_or("");

  /// Whether the folders have names that Open MPI gives ("/tmp/ompi.host.0/pid.123") and may
  /// therefore be removed.
  bool are_of_open_mpi() const {
    return host.find("/ompi.") != std::string::npos && job.starts_with(host + "/") &&
           job.find("..") == std::string::npos;
  }
};

/// Runs in the forked process. It makes only system calls, because other threads may have held
/// locks when the process was forked.
[[noreturn]] void watch(int descriptor, const SessionFolders& folders, bool removes) {
  ::setsid();  // launchers kill the process groups of their ranks
  // The launcher waits until the output of its ranks is closed, so this process closes its copy.
  if (::dup2(descriptor, 0) != 0 || ::syscall(SYS_close_range, 1, ~0u, 0) != 0) ::_exit(1);
  pollfd event{.fd = 0, .events = POLLIN, .revents = 0};
  if (::poll(&event, 1, kEndsByItselfMs) > 0) ::_exit(0);
  // Open MPI 4.1 ends on SIGTERM only after further seconds, or with a segmentation fault.
  ::syscall(SYS_pidfd_send_signal, 0, SIGKILL, nullptr, 0);
  if (removes)
    ::execl("/bin/sh", "sh", "-c", "rm -rf -- \"$0\"; rmdir -- \"$1\"", folders.job.c_str(),
            folders.host.c_str(), nullptr);
  ::_exit(0);
}

#endif

}  // namespace

void end_stuck_launcher() {
#if defined(SYS_pidfd_open) && defined(SYS_pidfd_send_signal) && defined(SYS_close_range)
  const pid_t launcher = ::getppid();
  if (launcher <= 1 || !is_of_mpi(launcher)) return;
  const int descriptor = static_cast<int>(::syscall(SYS_pidfd_open, launcher, 0));
  if (descriptor < 0) return;
  const SessionFolders folders;
  const bool removes = folders.are_of_open_mpi();
  // Another process may have taken the number, unless it is still that of the parent.
  if (::getppid() == launcher && ::fork() == 0) watch(descriptor, folders, removes);
  ::close(descriptor);
#endif
}

}  // namespace brrr::ranks
