#include "cli/launch/process_end.h"

#include <sys/wait.h>

#include <csignal>
#include <cstring>

#include <fmt/format.h>

namespace brrr::cli {

int code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool asks_for_the_end(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT ||
         signal == SIGPIPE;
}

std::string ended_by_signal(int signal) {
  return fmt::format("was ended by signal {} ({}{})", signal, ::strsignal(signal),
                     signal == SIGKILL ? "; if nobody sent it, memory ran out: see dmesg" : "");
}

}  // namespace brrr::cli
