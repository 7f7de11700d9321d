#include "web/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.h"

namespace brrr::io {
namespace {

/// A descriptor, closed at its end.
class End {
 public:
  End() = default;
  explicit End(int fd) : fd_(fd) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() { close(); }
  void open(int fd) {
    close();
    fd_ = fd;
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

void open_pipe(End& read, End& write) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) user_error("cannot create a pipe: {}", std::strerror(errno));
  read.open(ends[0]);
  write.open(ends[1]);
}

/// A child process, which does not outlive this.
class Process {
 public:
  explicit Process(pid_t id) : id_(id) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    wait();
  }
  int wait() {
    int status = 0;
    while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    return status;
  }

 private:
  pid_t id_;
};

/// Reads once; nothing at the end.
std::optional<std::string_view> read_piece(int fd, std::vector<char>& buffer) {
  for (;;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    return std::string_view(buffer.data(), static_cast<size_t>(n));
  }
}

}  // namespace

bool ProgramEnd::is_killed() const { return !WIFEXITED(exit_status); }

std::string ProgramEnd::failure_of(const std::string& program) const {
  if (is_killed()) return program + " was killed";
  // Programs say why they stopped on their last line.
  std::string reason = message;
  while (!reason.empty() && (reason.back() == '\n' || reason.back() == '\r')) reason.pop_back();
  reason = reason.substr(reason.rfind('\n') + 1);
  if (reason.empty()) reason = fmt::format("exit status {}", WEXITSTATUS(exit_status));
  return reason.starts_with(program) ? reason : program + ": " + reason;
}

std::optional<ProgramEnd> run_program(const std::vector<std::string>& arguments,
                                      std::string_view input, const TakeOutput& take) {
  // A socket as standard input: to write to one whose reader is gone is an error, not a signal.
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    user_error("cannot create a socket: {}", std::strerror(errno));
  End in(sockets[0]), in_of_child(sockets[1]), out, out_of_child, messages, messages_of_child;
  if (take) open_pipe(out, out_of_child);
  open_pipe(messages, messages_of_child);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in_of_child.get(), STDIN_FILENO);
  if (take)
    posix_spawn_file_actions_adddup2(&actions, out_of_child.get(), STDOUT_FILENO);
  else
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, messages_of_child.get(), STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t id = -1;
  const int error = ::posix_spawnp(&id, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return std::nullopt;
  Process process(id);
  in_of_child.close();
  out_of_child.close();
  messages_of_child.close();
  while (!input.empty()) {
    const ssize_t n = ::send(in.get(), input.data(), input.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;  // the program ended; its message says why
    input.remove_prefix(static_cast<size_t>(n));
  }
  in.close();

  ProgramEnd end;
  std::vector<char> buffer(size_t{1} << 16);
  while (out.get() >= 0 || messages.get() >= 0) {
    pollfd waiting[] = {{out.get(), POLLIN, 0}, {messages.get(), POLLIN, 0}};
    if (::poll(waiting, 2, -1) < 0) {
      if (errno == EINTR) continue;
      user_error("cannot wait for {}: {}", arguments.front(), std::strerror(errno));
    }
    if (waiting[1].revents != 0) {
      if (const auto piece = read_piece(messages.get(), buffer))
        end.message += *piece;
      else
        messages.close();
    }
    if (waiting[0].revents != 0) {
      if (const auto piece = read_piece(out.get(), buffer))
        take(*piece);
      else
        out.close();
    }
  }
  end.exit_status = process.wait();
  return end;
}

}  // namespace brrr::io
