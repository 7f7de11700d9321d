#include "web/http_server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "base/errors.h"
#include "support/http.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using test::http_get;
using test::Socket;
using test::status_of;

/// "event 1", "event 2", ...
class Counter : public EventSource {
 public:
  explicit Counter(std::string tail = "") : tail_(std::move(tail)) {}
  std::string next() override { return "event " + std::to_string(++count_) + tail_; }

 private:
  int count_ = 0;
  std::string tail_;
};

HttpRoutes routes() {
  HttpRoutes r;
  r.pages.push_back({"/", "text/html; charset=utf-8", [] { return std::string("<p>hello</p>"); }});
  r.pages.push_back(
      {"/broken", "text/plain", []() -> std::string { user_error("no page today"); }});
  r.pages.push_back({"/large", "text/plain", [] { return std::string(6 << 20, 'x'); }});
  r.streams.push_back({"/events", [] { return std::make_unique<Counter>(); }});
  r.streams.push_back(
      {"/flood", [] { return std::make_unique<Counter>(std::string(1 << 20, 'x')); }});
  return r;
}

std::string request(const HttpServer& server, const std::string& path) {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost:" + std::to_string(server.port()) +
         "\r\n\r\n";
}

TEST(HttpServer, AnswersOnThisMachine) {
  const HttpServer server(0, routes());
  EXPECT_GT(server.port(), 0);
  EXPECT_EQ(server.url(), "http://127.0.0.1:" + std::to_string(server.port()) + "/");
  const std::string answer = http_get(server.port(), "/");
  EXPECT_EQ(status_of(answer), "200") << answer;
  EXPECT_TRUE(answer.ends_with("<p>hello</p>")) << answer;
  for (const char* header : {"Content-Security-Policy: default-src 'none'", "nosniff", "no-store",
                             "Cross-Origin-Resource-Policy: same-origin", "X-Frame-Options: DENY"})
    EXPECT_NE(answer.find(header), std::string::npos) << header << "\n" << answer;
  EXPECT_EQ(status_of(http_get(server.port(), "/absent")), "404");
  const std::string broken = http_get(server.port(), "/broken");
  EXPECT_EQ(status_of(broken), "500");
  EXPECT_TRUE(broken.ends_with("no page today\n")) << broken;
  EXPECT_EQ(broken.find("EXCEPTION"), std::string::npos) << broken;
  EXPECT_EQ(status_of(http_get(server.port(), "/../etc/passwd")), "404");
}

TEST(HttpServer, RefusesOtherHostsOriginsSitesAndMethods) {
  const HttpServer server(0, routes());
  const int port = server.port();
  const std::string p = std::to_string(port);
  for (const std::string path : {"/", "/events"}) {
    // What DNS rebinding looks like: a name of somebody else that leads here.
    for (const std::string host :
         {"evil.example", "evil.example:80", "127.0.0.1", "localhost", "127.0.0.1:1", "[::1]:1"})
      EXPECT_EQ(status_of(http_get(port, path, "", "GET", host)), "403") << host;
    EXPECT_EQ(status_of(http_get(port, path, "", "GET", "evil.example:" + p)), "403");
    for (const std::string& origin :
         std::vector<std::string>{"http://evil.example", "null", "https://127.0.0.1:" + p,
                                  "http://127.0.0.1", "http://127.0.0.1:1"})
      EXPECT_EQ(status_of(http_get(port, path, "Origin: " + origin + "\r\n")), "403") << origin;
    EXPECT_EQ(status_of(http_get(port, path, "Sec-Fetch-Site: cross-site\r\n")), "403");
    EXPECT_EQ(status_of(http_get(port, path, "Host: evil.example\r\n")), "403") << "two hosts";
    for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"})
      EXPECT_EQ(status_of(http_get(port, path, "Content-Length: 0\r\n", method)), "405") << method;
  }
  // A link from elsewhere may be followed, and the page may talk to its server.
  EXPECT_EQ(
      status_of(http_get(port, "/", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: document\r\n")),
      "200");
  EXPECT_EQ(status_of(http_get(port, "/", "Origin: http://localhost:" + p + "\r\n")), "200");
  EXPECT_EQ(status_of(http_get(port, "/", "", "GET", "localhost:" + p)), "200");
}

TEST(HttpServer, StreamsToSeveralAndEndsThem) {
  auto server = std::make_unique<HttpServer>(0, routes());
  const Socket a(server->port()), b(server->port());
  a.send(request(*server, "/events"));
  b.send(request(*server, "/events"));
  const std::string first = a.receive("event 3\n\n");
  EXPECT_NE(first.find("Content-Type: text/event-stream"), std::string::npos) << first;
  EXPECT_NE(first.find("data: event 3\n\n"), std::string::npos) << first;
  EXPECT_NE(b.receive("event 2\n\n").find("data: event 1\n\n"), std::string::npos);
  // The last event is one that is asked for after the end was near.
  std::thread ends([&] { server.reset(); });
  const std::string rest = a.receive();
  ends.join();
  EXPECT_NE(rest.find("data: event"), std::string::npos) << rest;
  EXPECT_TRUE(rest.ends_with("0\r\n\r\n")) << "the stream did not end properly: " << rest;
}

TEST(HttpServer, ABusyPortIsSaid) {
  const HttpServer first(0, routes());
  const std::string wanted = "cannot listen on port " + std::to_string(first.port());
  EXPECT_USER_ERROR(HttpServer(first.port(), routes()), wanted);
  EXPECT_EQ(status_of(http_get(first.port(), "/")), "200");
}

TEST(HttpServer, APortIsFreeAgainAtOnce) {
  int port = 0;
  {
    const HttpServer server(0, routes());
    port = server.port();
    EXPECT_EQ(status_of(http_get(port, "/")), "200");
  }
  const HttpServer again(port, routes());
  EXPECT_EQ(status_of(http_get(port, "/")), "200");
}

// With these limits nobody is dropped for being slow: where a client is served or the server ends
// all the same, it waited for nobody. A server that waits makes the test hang.
constexpr HttpLimits kUnlimited{std::chrono::hours(1), std::chrono::hours(1)};

TEST(HttpServer, ServesAndEndsBesideClientsThatSendOrReadNothing) {
  std::vector<std::unique_ptr<Socket>> clients;
  const HttpServer server(0, routes(), kUnlimited);
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Socket>(server.port()));
    clients.back()->send(request(server, "/flood"));  // megabytes that nobody reads
    clients.push_back(std::make_unique<Socket>(server.port()));
    clients.back()->send("GET / HTT");
  }
  clients.push_back(std::make_unique<Socket>(server.port()));
  clients.back()->send(std::string("\0\xff\r\n\r\n", 6));
  clients.push_back(std::make_unique<Socket>(server.port()));
  clients.back()->send("GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(status_of(http_get(server.port(), "/")), "200");
}

TEST(HttpServer, EndsBesideAClientThatSendsSlowly) {
  std::unique_ptr<Socket> client;
  std::jthread dribble;
  const HttpServer server(0, routes(), kUnlimited);
  client = std::make_unique<Socket>(server.port());
  client->send("GET / HTTP/1.1\r\n");
  dribble = std::jthread([&client](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      client->send("X");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

// Sends a byte to each now and then, or takes a few from each, while it lives.
class Dribble {
 public:
  enum Way { kSends, kReceives };
  Dribble(const std::vector<std::unique_ptr<Socket>>& clients, Way way)
      : thread_([&clients, way](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            for (const auto& client : clients) {
              if (way == kSends)
                client->send("X");
              else
                client->take(64 << 10);
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
          }
        }) {}

 private:
  std::jthread thread_;
};

TEST(HttpServer, AnswersBesideHundredsOfClientsThatSendSlowly) {
  const HttpServer server(0, routes(), kUnlimited);
  std::vector<std::unique_ptr<Socket>> clients;
  for (int i = 0; i < 300; ++i) {
    clients.push_back(std::make_unique<Socket>(server.port()));
    clients.back()->send("GET / HTTP/1.1\r\n");
  }
  const Dribble dribble(clients, Dribble::kSends);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(status_of(http_get(server.port(), "/")), "200") << i;
}

TEST(HttpServer, AnswersBesideClientsThatReceiveSlowly) {
  const HttpServer server(0, routes(), kUnlimited);
  std::vector<std::unique_ptr<Socket>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<Socket>(server.port(), 4096));
    clients.back()->send(request(server, "/large"));
  }
  const Dribble dribble(clients, Dribble::kReceives);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(status_of(http_get(server.port(), "/")), "200") << i;
}

TEST(HttpServer, DropsARequestWithoutEnd) {
  // By its size alone:
  const HttpServer patient(0, routes(), kUnlimited);
  const Socket large(patient.port());
  const std::string header = "X-Header: " + std::string(1000, 'a') + "\r\n";
  large.send("GET / HTTP/1.1\r\n");
  while (large.send(header)) continue;
  // By its time alone:
  const HttpServer hasty(0, routes(), {.request = std::chrono::milliseconds(300)});
  const Socket slow(hasty.port());
  slow.send("GET / HTTP/1.1\r\n");
  while (slow.send("X")) std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

TEST(HttpServer, StreamsAreLimitedAndComeBack) {
  const HttpServer server(0, routes());
  {
    std::vector<std::unique_ptr<Socket>> open;
    for (int i = 0; i < 8; ++i) {
      open.push_back(std::make_unique<Socket>(server.port()));
      open.back()->send(request(server, "/events"));
      EXPECT_NE(open.back()->receive("event 1\n").find("event 1\n"), std::string::npos) << i;
    }
    EXPECT_EQ(status_of(http_get(server.port(), "/events")), "503");
    EXPECT_EQ(status_of(http_get(server.port(), "/")), "200");
  }
  // Clients that left make room as soon as the server notices.
  std::string status;
  for (int i = 0; status != "200" && i < 1000; ++i) {
    const Socket s(server.port());
    s.send(request(server, "/events"));
    status = status_of(s.receive("event 1\n"));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(status, "200");
}

}  // namespace
}  // namespace brrr::io
