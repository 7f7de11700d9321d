#pragma once
// A server on this machine that speaks like the Hugging Face Hub, and may misbehave as servers and
// networks do.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/sha1.h"
#include "base/sha256.h"

namespace brrr::test {

class FakeHub {
 public:
  struct Request {
    std::string method = {}, path = {}, token = {};  // the token of the Authorization header
    std::optional<uint64_t> range = {};              // the first byte that is asked for
  };
  struct File {
    std::string content = {};
    bool is_large = false;    // in large-file storage: named by its SHA-256, and on another server
    std::string sha256 = {};  // what the server says it is; "" for the truth
    uint64_t claimed = 0;     // bytes that the server says it has; 0 for the truth
    std::string etag = {};    // of a small file; "" for the name that Git gives it
    /// What a body is instead, the first time, the second, ...: a login page, a part of the file.
    std::vector<std::string> instead = {};
  };

  /// What it serves; to be set before it is asked.
  std::string id = "some-lab/tiny", commit = std::string(40, 'c');
  std::map<std::string, File> files;
  std::string token;  // "" where everybody may read
  int refusal = 401;  // the status for those who may not
  std::string refusal_code = "RepoNotFound";
  std::optional<uint64_t> cut;  // the connection ends after these bytes
  bool ignores_range = false;
  bool names_commit = true;             // X-Repo-Commit, as the Hub does
  std::string storage;                  // where large files are: another server
  std::vector<std::string> more_names;  // that the list of files holds besides

  FakeHub() {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    socklen_t size = sizeof address;
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd_, 16) != 0 ||
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("no port");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  FakeHub(const FakeHub&) = delete;
  FakeHub& operator=(const FakeHub&) = delete;
  ~FakeHub() { stop(); }
  /// From now on nobody answers.
  void stop() {
    if (fd_ < 0) return;
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
    fd_ = -1;
  }

  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  std::vector<Request> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  void forget_requests() {
    const std::lock_guard lock(mutex_);
    requests_.clear();
  }
  /// The bytes of bodies of files that were sent.
  uint64_t sent() const {
    const std::lock_guard lock(mutex_);
    return sent_;
  }

 private:
  void serve() {
    for (;;) {
      const int client = ::accept(fd_, nullptr, nullptr);
      if (client < 0) return;
      std::string text;
      char buffer[4096];
      while (text.find("\r\n\r\n") == std::string::npos) {
        const ssize_t n = ::recv(client, buffer, sizeof buffer, 0);
        if (n <= 0) break;
        text.append(buffer, static_cast<size_t>(n));
      }
      const std::string reply = answer(read(text));
      for (size_t at = 0; at < reply.size();) {
        const ssize_t n = ::send(client, reply.data() + at, reply.size() - at, MSG_NOSIGNAL);
        if (n <= 0) break;
        at += static_cast<size_t>(n);
      }
      ::close(client);
    }
  }
  static std::string after(const std::string& text, const std::string& mark) {
    const size_t at = text.find(mark);
    if (at == std::string::npos) return "";
    return text.substr(at + mark.size(),
                       text.find_first_of("\r ", at + mark.size()) - at - mark.size());
  }
  static Request read(const std::string& text) {
    Request r;
    const size_t space = std::min(text.find(' '), text.size());
    r.method = text.substr(0, space);
    r.path = after(text, " ");
    r.token = after(text, "Authorization: Bearer ");
    if (const std::string from = after(text, "Range: bytes="); !from.empty())
      r.range = std::stoull(from);
    return r;
  }
  static std::string reply(const std::string& status, const std::string& headers,
                           const std::string& body = "") {
    return "HTTP/1.1 " + status + "\r\nConnection: close\r\n" + headers +
           (headers.find("Content-Length") == std::string::npos
                ? fmt::format("Content-Length: {}\r\n", body.size())
                : "") +
           "\r\n" + body;
  }

  std::string answer(const Request& r) {
    const std::lock_guard lock(mutex_);
    requests_.push_back(r);
    const auto absent = [](const char* code) {
      return reply("404 Not Found", std::string("X-Error-Code: ") + code + "\r\n");
    };
    // The other server: files by their content, for everybody.
    if (r.path.starts_with("/storage/")) {
      const auto file = files.find(r.path.substr(9));
      return file == files.end() ? absent("") : body_of(r, file->second, "");
    }
    if (!token.empty() && r.token != token)
      return reply(fmt::format("{} Refused", refusal), "X-Error-Code: " + refusal_code + "\r\n");
    const std::string api = "/api/models/" + id + "/revision/", resolve = "/" + id + "/resolve/";
    if (r.path == api + "main" || r.path == api + commit) {
      std::string names;
      const auto add = [&](const std::string& name) {
        names += (names.empty() ? "" : ",") + ("{\"rfilename\":\"" + name + "\"}");
      };
      for (const auto& [name, file] : files) add(name);
      for (const std::string& name : more_names) add(name);
      return reply("200 OK", "", "{\"sha\":\"" + commit + "\",\"siblings\":[" + names + "]}");
    }
    if (r.path.starts_with(api)) return absent("RevisionNotFound");
    if (!r.path.starts_with(resolve + commit + "/")) return absent("RepoNotFound");
    const std::string name = r.path.substr(resolve.size() + commit.size() + 1);
    const auto at = files.find(name);
    if (at == files.end()) return absent("EntryNotFound");
    File& file = at->second;
    const std::string of_commit = names_commit ? "X-Repo-Commit: " + commit + "\r\n" : "";
    if (!file.is_large)
      return body_of(r, file,
                     of_commit + "ETag: W/\"" +
                         (file.etag.empty() ? git_blob_name(file.content) : file.etag) + "\"\r\n");
    return reply(
        "302 Found",
        of_commit + fmt::format("X-Linked-Etag: \"{}\"\r\nX-Linked-Size: {}\r\nLocation: {}\r\n",
                                file.sha256.empty() ? sha256_hex(file.content) : file.sha256,
                                file.claimed > 0 ? file.claimed : file.content.size(),
                                storage + "/storage/" + name));
  }
  std::string body_of(const Request& r, File& file, const std::string& headers) {
    if (r.method != "HEAD" && !file.instead.empty()) {
      const std::string body = file.instead.front();
      file.instead.erase(file.instead.begin());
      return reply("200 OK", headers, body);
    }
    const bool in_part = r.range && !ignores_range;
    if (in_part && *r.range >= file.content.size()) return reply("416 Range Not Satisfiable", "");
    const std::string all = file.content.substr(in_part ? *r.range : 0);
    std::string more = headers + fmt::format("Content-Length: {}\r\n", all.size());
    if (in_part)
      more += fmt::format("Content-Range: bytes {}-{}/{}\r\n", *r.range, file.content.size() - 1,
                          file.content.size());
    if (r.method == "HEAD") return reply("200 OK", more);
    const std::string body = file.is_large && cut ? all.substr(0, *cut) : all;
    sent_ += body.size();
    return reply(in_part ? "206 Partial Content" : "200 OK", more, body);
  }

  int fd_ = -1, port_ = 0;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  uint64_t sent_ = 0;
  std::thread thread_;
};

}  // namespace brrr::test
