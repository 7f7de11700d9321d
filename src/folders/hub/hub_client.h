#pragma once
// What the Hugging Face Hub, or a server that speaks like it, says about a model, and its files.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "folders/hub/hub_cache.h"
#include "web/curl.h"

namespace brrr::io {

/// The state of a model at a revision.
struct HubListing {
  std::string commit;
  std::vector<std::string> files;  // paths that lead nowhere but into the model's folder
};

/// A file of a model.
struct HubFile {
  std::string name;  // "model.safetensors", "1_Pooling/config.json"
  std::string etag;  // what its content is called in the cache
  std::optional<uint64_t> bytes;
  /// Files in large-file storage are called by their SHA-256.
  bool has_sha256() const;
  /// Other files by the SHA-1 that Git gives them (git_blob_name).
  bool has_git_name() const;
};

/// Asks the server that HF_ENDPOINT names, with the token of HF_TOKEN or of the file that `hf auth
/// login` writes. The token goes to that server alone, over HTTPS or within this machine.
class HubClient {
 public:
  /// Throws UserError for an endpoint that is no address, a token that cannot be one, and a token
  /// that would travel in plain text.
  explicit HubClient(HubName name);

  const std::string& endpoint() const { return endpoint_; }

  /// Each of these throws UserError for an answer that is no success, on one line that says what
  /// to do.
  HubListing list() const;
  HubFile describe(const std::string& commit, const std::string& file) const;
  /// Gets a file from an offset on. `take` gets the pieces, and the offset that the first of them
  /// has: 0 where the server ignores the offset. Returns why the transfer was cut off, or "".
  std::string get(const std::string& commit, const HubFile& file, uint64_t offset,
                  const std::function<void(uint64_t begin, std::string_view)>& take) const;

 private:
  /// Asks, and goes on where the answer is a redirect, without the token to another server. Stops
  /// at a redirect that `enough` is content with.
  HttpAnswer ask(HttpRequest request, const TakeBody& take = {},
                 const std::function<bool(const HttpAnswer&)>& enough = {}) const;
  void check(const HttpAnswer& answer, const std::string& what) const;
  std::string url_of(const std::string& commit, const std::string& file) const;

  HubName name_;
  std::string endpoint_, token_, token_source_;
};

}  // namespace brrr::io
