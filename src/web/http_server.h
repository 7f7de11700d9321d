#pragma once
// An HTTP server for browsers on this machine: pages, and streams of events (server-sent events).
// It listens on 127.0.0.1 only, answers GET only, and refuses requests that name another host (DNS
// rebinding) or come from another origin. Its threads are its own; what it serves is asked for on
// them. A client that is too slow is dropped (HttpLimits); no number of connections keeps others
// from being answered.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace brrr::io {

/// What one client of a stream gets.
class EventSource {
 public:
  virtual ~EventSource() = default;
  /// What is new since the last call, as one line of text (JSON), or "": asked four times a second.
  virtual std::string next() = 0;
};

struct HttpRoutes {
  struct Page {
    std::string path, type;  // "/", "text/html; charset=utf-8"
    std::function<std::string()> content;
  };
  struct Stream {
    std::string path;
    std::function<std::unique_ptr<EventSource>()> open;
  };
  std::vector<Page> pages;
  std::vector<Stream> streams;
};

/// How long a client may take. Where many clients wait, slow ones are dropped sooner.
struct HttpLimits {
  std::chrono::milliseconds request{2000};  // to send the whole request
  std::chrono::milliseconds page{10'000};   // to receive the whole page
};

class HttpServer {
 public:
  /// Answers from here on. `port` 0: any that is free. Throws UserError for a port that cannot be
  /// had. From then on a write to a closed pipe is an error of that write, no signal.
  HttpServer(int port, HttpRoutes routes, HttpLimits limits = {});
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  /// Asks every stream once more, ends them, and stops; waits a few seconds at most.
  ~HttpServer();

  int port() const;
  std::string url() const;  // "http://127.0.0.1:8123/"

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace brrr::io
