#include "web/curl.h"

#include <algorithm>

#include "base/encoding/ascii.h"
#include "base/errors.h"
#include "base/system_text.h"
#include "web/program.h"

namespace brrr::io {
namespace {

constexpr size_t kMostHeaderBytes = size_t{1} << 20;

/// A line of curl's configuration.
std::string config_line(std::string_view option, std::string_view value) {
  std::string line(option);
  line += " = \"";
  for (const char c : value) {
    BRRR_CHECK(static_cast<unsigned char>(c) >= ' ', "a control character in a request");
    if (c == '"' || c == '\\') line += '\\';
    line += c;
  }
  return line + "\"\n";
}

std::string config_of(const HttpRequest& request) {
  std::string config =
      "silent\nshow-error\ngloboff\ninclude\nsuppress-connect-headers\n"
      "connect-timeout = 10\nspeed-time = 30\nspeed-limit = 100\n";
  config += config_line("proto", "=http,https");
  // Compressed bodies would have other lengths than the files.
  config += config_line("header", "Accept-Encoding: identity");
  if (request.head) config += "head\n";
  if (request.offset > 0) config += config_line("range", fmt::format("{}-", request.offset));
  if (!request.token.empty())
    config += config_line("header", "Authorization: Bearer " + request.token);
  return config + config_line("url", request.url);
}

/// Parts an answer, as it comes, into headers and body.
class AnswerReader {
 public:
  AnswerReader(HttpAnswer& answer, const TakeBody& take) : answer_(answer), take_(take) {}

  void add(std::string_view piece) {
    while (in_headers_ && !piece.empty()) {
      const size_t end = std::min(piece.find('\n'), piece.size() - 1) + 1;
      line_.append(piece.substr(0, end));
      piece.remove_prefix(end);
      header_bytes_ += end;
      if (header_bytes_ > kMostHeaderBytes) user_error("an answer has more than 1 MiB of headers");
      if (line_.back() == '\n') take_line();
    }
    if (!piece.empty() && take_) take_(answer_, piece);
  }

 private:
  void take_line() {
    const std::string line(system_text::trimmed(line_));
    line_.clear();
    if (line.empty()) {
      // "100 Continue" and its like announce the answer.
      in_headers_ = answer_.status < 200;
    } else if (line.starts_with("HTTP/")) {
      answer_.headers.clear();
      answer_.status = static_cast<int>(
          system_text::number(line.substr(std::min(line.find(' '), line.size()))).value_or(0));
    } else if (const size_t colon = line.find(':'); colon != std::string::npos) {
      answer_.headers[ascii_lowercase(line.substr(0, colon))] =
          system_text::trimmed(std::string_view(line).substr(colon + 1));
    }
  }

  HttpAnswer& answer_;
  const TakeBody& take_;
  bool in_headers_ = true;
  size_t header_bytes_ = 0;
  std::string line_;
};

}  // namespace

std::string HttpAnswer::header(const std::string& name) const {
  const auto at = headers.find(name);
  return at == headers.end() ? "" : at->second;
}

HttpAnswer http_request(const HttpRequest& request, const TakeBody& take) {
  HttpAnswer answer;
  AnswerReader reader(answer, take);
  const auto end = run_program({"curl", "--config", "-"}, config_of(request),
                               [&](std::string_view piece) { reader.add(piece); });
  if (!end)
    user_error("cannot download {}: curl is not installed; install it (apt install curl)",
               request.url);
  // Whoever ends it wants no other try.
  if (end->is_killed()) user_error("cannot download {}: curl was killed", request.url);
  if (!end->is_success()) answer.failure = end->failure_of("curl");
  return answer;
}

}  // namespace brrr::io
