#include "insight/bench/peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/errors.h"
#include "base/human.h"
#include "formats/json_file.h"

namespace brrr::insight {
namespace {

constexpr size_t kLongestAnswer = size_t{64} << 20;
constexpr double kPollSeconds = 0.1;  // between two looks at PeerOptions::stop

/// The last line that is not empty, of at most 300 bytes.
std::string last_line(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0)
    text.pop_back();
  text = text.substr(text.rfind('\n') + 1);
  constexpr size_t kMost = 300;
  return text.size() > kMost ? text.substr(0, kMost) + "..." : text;
}

/// This process's environment with `more` in the place of variables of the same names.
std::vector<std::string> environment_with(const std::vector<std::string>& more) {
  std::vector<std::string> all = more;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view variable(*e);
    const std::string_view name = variable.substr(0, variable.find('=') + 1);
    if (std::ranges::none_of(more, [&](const std::string& m) { return m.starts_with(name); }))
      all.emplace_back(variable);
  }
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

}  // namespace

PeerProcess::PeerProcess(PeerOptions options) : options_(std::move(options)) {
  // Sockets: writing to a process that has ended is an error then, not a signal.
  int in[2], out[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0)
    throw PeerError(fmt::format("no socket could be created: {}", std::strerror(errno)));
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out) != 0) {
    const int error = errno;
    ::close(in[0]);
    ::close(in[1]);
    throw PeerError(fmt::format("no socket could be created: {}", std::strerror(error)));
  }
  in_ = in[0];
  out_ = out[0];
  ::fcntl(in_, F_SETFL, O_NONBLOCK);
  ::fcntl(out_, F_SETFL, O_NONBLOCK);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, options_.messages.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  std::vector<std::string> words = options_.arguments,
                           variables = environment_with(options_.environment);
  const std::vector<char*> argv = pointers_to(words), envp = pointers_to(variables);
  const int error = ::posix_spawnp(&id_, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(in[1]);
  ::close(out[1]);
  if (error == 0) return;
  ::close(in_);
  ::close(out_);
  throw PeerError(
      fmt::format("{} cannot be started: {}", options_.arguments[0], std::strerror(error)));
}

PeerProcess::~PeerProcess() {
  ::close(in_);
  ::close(out_);
  if (id_ <= 0) return;
  ::kill(id_, SIGKILL);
  while (::waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

nlohmann::json PeerProcess::ask(const nlohmann::json& question) {
  if (id_ > 0) ::kill(id_, SIGCONT);
  const double deadline = now_seconds() + options_.timeout_seconds;
  write_line(question.dump() + "\n", deadline);
  const std::string line = read_line(deadline);
  nlohmann::json answer = nlohmann::json::parse(line, nullptr, false);
  if (!answer.is_object())
    throw PeerError(fmt::format("expected a JSON object on one line; got {}", io::in_quotes(line)));
  if (const auto error = answer.find("error"); error != answer.end())
    throw PeerError(error->is_string() ? error->get<std::string>() : error->dump());
  return answer;
}

void PeerProcess::pause() {
  if (id_ > 0) ::kill(id_, SIGSTOP);
}

void PeerProcess::wait_for(int fd, short events, double deadline) {
  for (;;) {
    if (options_.stop && options_.stop()) throw PeerStopped();
    const double left = deadline - now_seconds();
    if (left <= 0)
      throw PeerError(fmt::format("no answer within {}", duration_text(options_.timeout_seconds)));
    pollfd waiting{fd, events, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(1e3 * std::min(left, kPollSeconds)) + 1);
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR)
      throw PeerError(fmt::format("waiting failed: {}", std::strerror(errno)));
  }
}

void PeerProcess::write_line(const std::string& line, double deadline) {
  for (std::string_view left = line; !left.empty();) {
    const ssize_t n = ::send(in_, left.data(), left.size(), MSG_NOSIGNAL);
    if (n >= 0)
      left.remove_prefix(static_cast<size_t>(n));
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      wait_for(in_, POLLOUT, deadline);
    else if (errno != EINTR)
      say_end();
  }
}

std::string PeerProcess::read_line(double deadline) {
  std::vector<char> piece(size_t{1} << 16);
  for (size_t searched = 0;;) {
    if (const size_t end = buffer_.find('\n', searched); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    searched = buffer_.size();
    if (searched > kLongestAnswer)
      throw PeerError(fmt::format("an answer is longer than {} MiB", kLongestAnswer >> 20));
    wait_for(out_, POLLIN, deadline);
    const ssize_t n = ::read(out_, piece.data(), piece.size());
    if (n > 0)
      buffer_.append(piece.data(), static_cast<size_t>(n));
    else if (n == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK))
      say_end();
  }
}

void PeerProcess::say_end() {
  if (id_ <= 0) throw PeerError("it has ended");
  // A process that has closed its output and runs on is of no use, either.
  ::kill(id_, SIGCONT);
  const double deadline = now_seconds() + 1;
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(id_, &status, WNOHANG)) == 0 && now_seconds() < deadline)
    ::usleep(5000);
  if (ended == 0) throw PeerError("it closed its standard output");
  id_ = -1;
  std::string how = WIFSIGNALED(status)
                        ? fmt::format("it was killed by signal {}", WTERMSIG(status))
                        : fmt::format("it ended with exit status {}", WEXITSTATUS(status));
  std::string reason;
  try {
    reason = last_line(read_file(options_.messages));
  } catch (const UserError&) {
    // The file may be gone.
  }
  throw PeerError(reason.empty() ? how : how + ": " + reason);
}

}  // namespace brrr::insight
