#pragma once
// Downloads a model into the cache of the Hugging Face Hub. A file appears there complete and
// checked, or not at all; a transfer that was cut off is kept and continued. Processes that
// download the same model, Python's among them, take turns file by file.

#include <optional>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/terminal/progress.h"
#include "folders/hub/hub_client.h"

namespace brrr::io {

class HubDownload {
 public:
  explicit HubDownload(const HubName& name);

  /// Says what it will download, does so, and returns the snapshot, or the first part of the GGUF
  /// file in it that the name means. Throws UserError.
  fs::path run();

 private:
  /// The files that the model needs, its weights last.
  std::vector<HubFile> choose();
  /// The files of the GGUF file that the name means; empty where it means none.
  std::vector<std::string> choose_gguf() const;
  [[noreturn]] void refuse_weights() const;
  bool has(const std::string& file) const;
  HubFile describe(const std::string& file) const;
  bool is_here(const HubFile& file) const;
  fs::path blob_of(const HubFile& file) const;
  fs::path partial_of(const HubFile& file) const;
  uint64_t kept_bytes(const HubFile& file) const;

  void announce(const std::vector<HubFile>& files);
  void fetch(const HubFile& file);
  /// Returns the SHA-256 of the partial file, which then is as long as it should be.
  std::string transfer(const HubFile& file);
  /// Why the partial file, whose SHA-256 is given, cannot be the file that the server has; "" if
  /// nothing speaks against it. An ETag that is a digest must fit, and JSON must be JSON.
  std::string damage_of(const HubFile& file, const std::string& sha256) const;
  void show(uint64_t bytes_of_file);
  void link(const HubFile& file) const;

  HubName name_;
  HubClient client_;
  fs::path folder_, blobs_, snapshot_;
  std::string gguf_;  // the first part of the GGUF file that is downloaded; "": none
  HubListing listing_;
  std::optional<Progress> progress_;
  uint64_t done_bytes_ = 0;  // of files that are complete
};

}  // namespace brrr::io
