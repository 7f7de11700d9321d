#include "cli/launch/launcher_signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace brrr::cli {

LauncherSignals::LauncherSignals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&signals, number);
  ::sigprocmask(SIG_BLOCK, &signals, &mask_before_);
  descriptor_ = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

LauncherSignals::~LauncherSignals() {
  ::close(descriptor_);
  restore_mask();
}

void LauncherSignals::read(const std::function<void(int signal)>& pass_on) {
  signalfd_siginfo info{};
  while (::read(descriptor_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) continue;
    last_ = static_cast<int>(info.ssi_signo);
    if (info.ssi_code != SI_KERNEL) pass_on(last_);
  }
}

}  // namespace brrr::cli
