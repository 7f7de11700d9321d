#pragma once
// PeerProcess: another program as a child process that answers questions, each a JSON object on one
// line of its standard input, by a JSON object on one line of its standard output. Not thread-safe.

#include <sys/types.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/file.h"

namespace brrr::insight {

/// Why a peer cannot be measured, as a phrase: "it ended with exit status 3: ...".
struct PeerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct PeerOptions {
  std::vector<std::string> arguments;    // the program and its arguments
  std::vector<std::string> environment;  // "NAME=value", on top of this process's
  fs::path messages;                     // file that takes its standard error
  double timeout_seconds = 300;          // for one answer
  std::function<bool()> stop = {};       // asked while waiting: true gives up
};

/// Thrown by ask() when PeerOptions::stop said so.
struct PeerStopped {};

class PeerProcess {
 public:
  /// Throws PeerError if the program cannot be started.
  explicit PeerProcess(PeerOptions options);
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  /// Kills the process.
  ~PeerProcess();

  /// Sends a question and waits for the answer. Throws PeerError if the process ends, takes longer
  /// than the timeout, answers with something else than a JSON object, or with {"error": reason}.
  nlohmann::json ask(const nlohmann::json& question);

  /// Stops the process until the next ask(), so that its threads do not disturb other measurements.
  void pause();

 private:
  void write_line(const std::string& line, double deadline);
  std::string read_line(double deadline);
  /// Waits until the descriptor is ready for `events`; throws PeerError at the deadline.
  void wait_for(int fd, short events, double deadline);
  /// Throws PeerError that says how the process ended.
  [[noreturn]] void say_end();

  PeerOptions options_;
  pid_t id_ = -1;
  int in_ = -1, out_ = -1;  // its standard input and output
  std::string buffer_;      // read and not yet returned
};

}  // namespace brrr::insight
