// The only source that includes cpp-httplib, which is heavy to compile.
#include "web/http_server.h"

// Debian's library is built with it; without it here a Request would be another class.
#define CPPHTTPLIB_OPENSSL_SUPPORT
#include <fmt/format.h>
#include <httplib.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "web/received_bytes.h"

namespace brrr::io {
namespace {

using namespace std::chrono_literals;

constexpr const char* kHost = "127.0.0.1";
constexpr const char* kThreadName = "brrr-http";  // in top, perf and debuggers
constexpr int kStreams = 8;                       // clients at once; a thread waits on each
constexpr int kConnections = 32;                  // at once, a thread for each
constexpr int kWaiting = 256;           // connections that the system keeps until there is room
constexpr int kBusy = 24;               // connections from which on those that take long make room
constexpr auto kPatience = 1s;          // with a client that receives a page while others wait
constexpr int64_t kRequest = 64 << 10;  // bytes of a request, headers included
constexpr auto kLook = 500ms;           // between two searches for clients that are too slow
constexpr auto kSweep = 100ms;          // the same while a new client waits for room
constexpr auto kInterval = 250ms;       // between two events
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

/// A connection of a client to this server, by the port at its other end.
struct Connection {
  int fd;
  int peer;
};

std::vector<Connection> connections_to(int port) {
  std::vector<Connection> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_in here{}, there{};
    socklen_t size = sizeof here, other = sizeof there;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &size) == 0 &&
        here.sin_family == AF_INET && ntohs(here.sin_port) == port &&
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &other) == 0)
      found.push_back({fd, ntohs(there.sin_port)});
  }
  return found;
}

/// Who is connected, and for how long. The library has time limits for each read and write, so a
/// client that sends or takes a byte now and then would hold a thread for ever: the whole of a
/// request and of a page has a limit here. Where there are many clients, those that have not asked
/// yet make room for new ones, the oldest first, because a browser asks as soon as it is connected;
/// after them those that take their page slowly.
class Visitors {
 public:
  explicit Visitors(HttpLimits limits) : limits_(limits) {}
  /// A connection was accepted: makes room for it, and waits while there is none.
  void enter(int port) {
    std::unique_lock hold(mutex_);
    ++inside_;
    for (;;) {
      sweep(port);
      if (inside_ <= kConnections || is_over_) return;
      left_.wait_for(hold, kSweep);
    }
  }
  void leave() {
    const std::lock_guard hold(mutex_);
    // Nobody looks while only streams are there, and ports come back.
    if (--inside_ <= lasting_)
      std::erase_if(stays_, [](const auto& one) { return one.second.stage != Stage::streams; });
    left_.notify_all();
  }
  void look(int port) {
    const std::lock_guard hold(mutex_);
    if (inside_ > lasting_) sweep(port);  // streams may stay
  }
  /// The client at this port has asked for a page, or for a stream, which lasts.
  void asked(int peer, bool for_stream) {
    const std::lock_guard hold(mutex_);
    stays_[peer] = {Clock::now(), for_stream ? Stage::streams : Stage::answers};
    lasting_ += for_stream;
  }
  void stream_ended() {
    const std::lock_guard hold(mutex_);
    --lasting_;
  }
  /// Ends all connections, those of later calls too.
  void close(int port) {
    const std::lock_guard hold(mutex_);
    is_over_ = true;
    for (const Connection& c : connections_to(port)) ::shutdown(c.fd, SHUT_RDWR);
    left_.notify_all();
  }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage { asks, answers, streams };
  struct Stay {
    Clock::time_point since;
    Stage stage = Stage::asks;
  };

  /// Ends what takes too long, and where there are many, what others have to wait for.
  void sweep(int port) {
    const Clock::time_point now = Clock::now();
    std::map<int, Stay> still_here;
    std::vector<std::pair<Clock::time_point, int>> asking, taking;  // since when, the descriptor
    for (const Connection& c : connections_to(port)) {
      const auto known = stays_.find(c.peer);
      const Stay stay = known != stays_.end() ? known->second : Stay{now};
      still_here[c.peer] = stay;
      const auto passed = now - stay.since;
      const bool too_long = (stay.stage == Stage::asks && passed > limits_.request) ||
                            (stay.stage == Stage::answers && passed > limits_.page);
      if (is_over_ || too_long || received_bytes(c.fd) > kRequest)
        ::shutdown(c.fd, SHUT_RDWR);
      else if (stay.stage == Stage::asks)
        asking.emplace_back(stay.since, c.fd);
      else if (stay.stage == Stage::answers && passed > kPatience)
        taking.emplace_back(stay.since, c.fd);
    }
    stays_ = std::move(still_here);
    // The newest is the one for which there is to be room.
    std::sort(asking.begin(), asking.end());
    if (!asking.empty()) asking.pop_back();
    // Others that have only just come go where it is full.
    if (inside_ <= kConnections)
      std::erase_if(asking, [&](const auto& one) { return now - one.first < kSweep; });
    std::sort(taking.begin(), taking.end());
    asking.insert(asking.end(), taking.begin(), taking.end());
    asking.resize(std::min(asking.size(), static_cast<size_t>(std::max(0, inside_ - kBusy))));
    for (const auto& [since, fd] : asking) ::shutdown(fd, SHUT_RDWR);
  }

  const HttpLimits limits_;
  std::mutex mutex_;
  std::condition_variable left_;
  std::map<int, Stay> stays_;  // by the port of the client
  int inside_ = 0;
  int lasting_ = 0;  // streams among them
  bool is_over_ = false;
};

/// The threads that answer, with Visitors before the door. The type that enqueue() returns differs
/// among versions of the library.
class Threads : public httplib::ThreadPool {
 public:
  using Result =
      decltype(std::declval<httplib::TaskQueue&>().enqueue(std::declval<std::function<void()>>()));

  Threads(Visitors& visitors, const int& port)
      : ThreadPool(kConnections), visitors_(visitors), port_(port) {}
  Result enqueue(std::function<void()> answer) override {
    visitors_.enter(port_);
    return ThreadPool::enqueue([answer = std::move(answer), &visitors = visitors_] {
      answer();
      visitors.leave();
    });
  }
  void on_idle() override { visitors_.look(port_); }

 private:
  Visitors& visitors_;
  const int& port_;
};

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
  explicit State(HttpLimits limits) : visitors(limits) {}
  Visitors visitors;
  HttpRoutes routes;
  int port = 0;
  socket_t listening = INVALID_SOCKET;
  httplib::Server server;
  std::thread thread;
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  bool stopping = false, stopped = false;
  int streams = 0;  // open ones

  void set_up() {
    server.set_address_family(AF_INET);
    // cpp-httplib's own options let two servers share a port.
    server.set_socket_options([this](socket_t s) {
      listening = s;
      const int yes = 1;
      ::setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server.new_task_queue = [this] { return new Threads(visitors, port); };
    server.set_idle_interval(kLook);
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
      visitors.asked(q.remote_port, false);
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
      server.Get(stream.path, [this, &stream](const httplib::Request& q, httplib::Response& r) {
        serve(stream, q, r);
      });
  }

  bool bind(int wanted) {
    port = wanted > 0 ? wanted : server.bind_to_any_port(kHost);
    if (port <= 0 || (wanted > 0 && !server.bind_to_port(kHost, wanted))) return false;
    // The library lets five wait, and the system has the next ones try again a second later.
    return ::listen(listening, kWaiting) == 0;
  }

  /// A stream of events until the client goes or the server stops.
  void serve(const HttpRoutes::Stream& stream, const httplib::Request& request,
             httplib::Response& response) {
    const std::shared_ptr<EventSource> source = stream.open();
    {
      const std::lock_guard hold(mutex);
      if (stopping || streams >= kStreams)
        return refuse(response, {503, "too many of these pages are open; close one"});
      ++streams;
    }
    visitors.asked(request.remote_port, true);
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, source](size_t, httplib::DataSink& sink) { return send(*source, sink); },
        [this](bool) {
          visitors.stream_ended();
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

HttpServer::HttpServer(int port, HttpRoutes routes, HttpLimits limits)
    : state_(std::make_unique<State>(limits)) {
  state_->routes = std::move(routes);
  state_->set_up();
  if (!state_->bind(port))
    user_error("cannot listen on port {} of {}: it is in use, or not permitted", port, kHost);
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
    do state_->visitors.close(state_->port);
    while (!state_->changed.wait_for(hold, kInterval, [&] { return state_->stopped; }));
  }
  state_->thread.join();
}

int HttpServer::port() const { return state_->port; }

std::string HttpServer::url() const { return fmt::format("http://{}:{}/", kHost, state_->port); }

}  // namespace brrr::io
