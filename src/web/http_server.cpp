// The only source that includes cpp-httplib, which is heavy to compile.
#include "web/http_server.h"

// Debian's library is built with it; without it here a Request would be another class.
#define CPPHTTPLIB_OPENSSL_SUPPORT
#include <fmt/format.h>
#include <httplib.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

#include "base/errors.h"

namespace brrr::io {
namespace {

using namespace std::chrono_literals;

constexpr const char* kHost = "127.0.0.1";
constexpr const char* kThreadName = "brrr-http";  // in top, perf and debuggers
constexpr int kStreams = 8;                       // clients at once; a thread waits on each
constexpr int kThreads = kStreams + 4;
constexpr auto kInterval = 250ms;  // between two events
constexpr int kSilent = 40;        // intervals after which a client is asked whether it is there
constexpr auto kLastWords = 3s;    // for streams to end in
constexpr size_t kPayload = 1024;  // bytes of a request's body: there is no use for one

// A page runs what stands in it and talks to this server, to nobody else.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct Refusal {
  int status;
  const char* reason;
};

/// Why a request is not answered, or nothing.
std::optional<Refusal> refusal(const httplib::Request& q, int port) {
  const auto is_here = [&](const std::string& host) {
    return host == fmt::format("{}:{}", kHost, port) || host == fmt::format("localhost:{}", port);
  };
  if (q.get_header_value_count("Host") != 1 || !is_here(q.get_header_value("Host")))
    return Refusal{403, "this server is for browsers on this machine: wrong host"};
  const std::string origin = q.get_header_value("Origin");
  if (!origin.empty() && !(origin.starts_with("http://") && is_here(origin.substr(7))))
    return Refusal{403, "other origins are not answered"};
  // A link from another site may be followed; nothing from here may stand in its pages.
  const std::string site = q.get_header_value("Sec-Fetch-Site");
  if ((site == "cross-site" || site == "same-site") &&
      q.get_header_value("Sec-Fetch-Dest") != "document")
    return Refusal{403, "other sites are not answered"};
  if (q.method != "GET") return Refusal{405, "only GET is answered"};
  return std::nullopt;
}

void refuse(httplib::Response& response, const Refusal& why) {
  response.status = why.status;
  if (why.status == 405) response.set_header("Allow", "GET");
  response.set_content(std::string(why.reason) + "\n", "text/plain; charset=utf-8");
}

/// Ends the connections of clients: who sends a byte now and then would hold a thread for ever.
void close_connections(int port) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_in here{}, there{};
    socklen_t size = sizeof here, other = sizeof there;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &size) == 0 &&
        here.sin_family == AF_INET && ntohs(here.sin_port) == port &&
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &other) == 0)
      ::shutdown(fd, SHUT_RDWR);
  }
}

// Threads that start while it lives handle no signals.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

struct HttpServer::State {
  httplib::Server server;
  HttpRoutes routes;
  int port = 0;
  std::thread thread;
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  bool stopping = false, stopped = false;
  int streams = 0;  // open ones

  void set_up() {
    server.set_address_family(AF_INET);
    // cpp-httplib's own options let two servers share a port.
    server.set_socket_options([](socket_t s) {
      const int yes = 1;
      ::setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server.set_keep_alive_max_count(1);
    server.set_read_timeout(2s);
    server.set_write_timeout(1s);
    server.set_payload_max_length(kPayload);
    server.set_default_headers({{"Content-Security-Policy", kPolicy},
                                {"X-Content-Type-Options", "nosniff"},
                                {"X-Frame-Options", "DENY"},
                                {"Referrer-Policy", "no-referrer"},
                                {"Cross-Origin-Resource-Policy", "same-origin"},
                                {"Cache-Control", "no-store"}});
    server.set_pre_routing_handler([this](const httplib::Request& q, httplib::Response& r) {
      const auto why = refusal(q, port);
      if (!why) return httplib::Server::HandlerResponse::Unhandled;
      refuse(r, *why);
      return httplib::Server::HandlerResponse::Handled;
    });
    for (const HttpRoutes::Page& page : routes.pages)
      server.Get(page.path, [&page](const httplib::Request&, httplib::Response& r) {
        try {
          r.set_content(page.content(), page.type);
        } catch (const std::exception& e) {
          refuse(r, {500, e.what()});
        }
      });
    for (const HttpRoutes::Stream& stream : routes.streams)
      server.Get(stream.path, [this, &stream](const httplib::Request&, httplib::Response& r) {
        serve(stream, r);
      });
  }

  bool bind(int wanted) {
    if (wanted > 0) {
      port = wanted;
      return server.bind_to_port(kHost, wanted);
    }
    port = server.bind_to_any_port(kHost);
    return port > 0;
  }

  /// A stream of events until the client goes or the server stops.
  void serve(const HttpRoutes::Stream& stream, httplib::Response& response) {
    const std::shared_ptr<EventSource> source = stream.open();
    {
      const std::lock_guard hold(mutex);
      if (stopping || streams >= kStreams)
        return refuse(response, {503, "too many of these pages are open; close one"});
      ++streams;
    }
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, source](size_t, httplib::DataSink& sink) { return send(*source, sink); },
        [this](bool) {
          const std::lock_guard hold(mutex);
          --streams;
          changed.notify_all();
        });
  }

  /// On the client's own thread. False when the client is gone.
  bool send(EventSource& source, httplib::DataSink& sink) {
    int silent = 0;
    for (bool is_last = false;;) {
      std::string text = source.next();
      if (!text.empty())
        text = "data: " + text + "\n\n";
      else if (++silent >= kSilent)
        text = ": still here\n\n";
      if (!text.empty()) {
        if (!sink.write(text.data(), text.size())) return false;
        silent = 0;
      }
      if (is_last) break;
      std::unique_lock hold(mutex);
      changed.wait_for(hold, kInterval, [&] { return stopping; });
      is_last = stopping;
    }
    sink.done();
    return true;
  }
};

HttpServer::HttpServer(int port, HttpRoutes routes) : state_(std::make_unique<State>()) {
  state_->routes = std::move(routes);
  state_->set_up();
  if (!state_->bind(port))
    user_error("cannot listen on port {} of {}: it is in use, or may not be taken", port, kHost);
  {
    const SignalsBlocked blocked;
    state_->thread = std::thread([state = state_.get()] {
      ::pthread_setname_np(::pthread_self(), kThreadName);  // those of the clients inherit it
      state->server.listen_after_bind();  // returns when the last client's thread has ended
      const std::lock_guard hold(state->mutex);
      state->stopped = true;
      state->changed.notify_all();
    });
  }
  // A server that does not run yet would not hear that it is to stop.
  while (!state_->server.is_running()) std::this_thread::sleep_for(1ms);
}

HttpServer::~HttpServer() {
  {
    std::unique_lock hold(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
    state_->changed.wait_for(hold, kLastWords, [&] { return state_->streams == 0; });
  }
  state_->server.stop();
  {
    std::unique_lock hold(state_->mutex);
    do close_connections(state_->port);
    while (!state_->changed.wait_for(hold, kInterval, [&] { return state_->stopped; }));
  }
  state_->thread.join();
}

int HttpServer::port() const { return state_->port; }

std::string HttpServer::url() const { return fmt::format("http://{}:{}/", kHost, state_->port); }

}  // namespace brrr::io
