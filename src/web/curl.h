#pragma once
// Requests of HTTP through curl, which brings TLS, proxies and certificates. Redirects are answers
// like others: who asks decides where to go on, and whether the token goes along.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace brrr::io {

struct HttpRequest {
  std::string url = {};
  bool head = false;       // the headers alone
  std::string token = {};  // the bearer's, "" for none; curl reads it from its standard input
  uint64_t offset = 0;     // the first byte that is wanted
};

struct HttpAnswer {
  int status = 0;                              // 0: there was no answer
  std::map<std::string, std::string> headers;  // by names in small letters
  std::string failure;                         // why the transfer failed; "" when it did not

  /// The value of a header; "" where there is none.
  std::string header(const std::string& name) const;
};

/// Takes a piece of the body of an answer, whose status and headers are there.
using TakeBody = std::function<void(const HttpAnswer&, std::string_view)>;

/// Asks, and waits for the whole answer. Throws UserError where there is no curl; what fails on
/// the way is in the answer.
HttpAnswer http_request(const HttpRequest& request, const TakeBody& take = {});

}  // namespace brrr::io
