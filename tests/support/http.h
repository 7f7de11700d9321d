#pragma once
// HTTP as bytes on a socket, so that tests can play misbehaving clients.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace brrr::test {

class Socket {
 public:
  /// `room`: bytes that the system keeps for it unread; 0: as many as usual.
  explicit Socket(int port, int room = 0) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (room > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { ::close(fd_); }
  bool connected() const { return connected_; }
  /// False when the other side hung up.
  bool send(const std::string& text) const {
    return ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) >= 0;
  }
  /// Takes up to `bytes` of what is there, without waiting.
  void take(size_t bytes) const {
    std::string buffer(bytes, '\0');
    if (::recv(fd_, buffer.data(), bytes, MSG_DONTWAIT) < 0) return;
  }
  /// What comes until the other side ends, `until` was there, or nothing came for `ms`.
  std::string receive(const std::string& until = "", int ms = 120'000) const {
    std::string text;
    char buffer[65536];
    for (;;) {
      if (!until.empty() && text.find(until) != std::string::npos) return text;
      pollfd waiting{fd_, POLLIN, 0};
      if (::poll(&waiting, 1, ms) <= 0) return text;
      const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) return text;
      text.append(buffer, static_cast<size_t>(n));
    }
  }

 private:
  int fd_;
  bool connected_ = false;
};

/// A request with these lines after "Host"; the whole answer.
inline std::string http_get(int port, const std::string& path, const std::string& more = "",
                            const std::string& method = "GET", std::string host = "") {
  if (host.empty()) host = "127.0.0.1:" + std::to_string(port);
  const Socket s(port);
  s.send(method + " " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + more + "\r\n");
  return s.receive();
}

/// "200" of "HTTP/1.1 200 OK".
inline std::string status_of(const std::string& answer) {
  return answer.size() > 12 ? answer.substr(9, 3) : answer;
}

}  // namespace brrr::test
