#pragma once
// The cache of the Hugging Face Hub, as Python's huggingface_hub lays it out:
// models--ORG--NAME/refs/REVISION holds a commit, blobs/ETAG the contents, and
// snapshots/COMMIT/FILE are links to them. What one program downloads the others find.

#include <optional>
#include <string>

#include "base/file.h"

namespace brrr::io {

/// A model of the Hub.
struct HubName {
  std::string id;                 // "ORG/NAME"; old caches also have names without a slash
  std::string revision = "main";  // a branch, a tag or a commit
  std::string gguf_type = {};     // of a GGUF file: "Q4_K_M"; "": no type was named
  bool can_be_downloaded() const { return id.find('/') != std::string::npos; }
  std::string text() const {
    return id + (revision == "main" ? "" : "@" + revision) +
           (gguf_type.empty() ? "" : ":" + gguf_type);
  }
};

/// Reads "ORG/NAME[@REVISION][:TYPE]"; GPT-2's sizes need no ORG, TYPE names a GGUF file. Nothing
/// where it cannot be such a name.
std::optional<HubName> parse_hub_name(const std::string& text);

/// Whether a name is a commit.
bool is_commit(std::string_view name);

/// The folder of a model in the cache, which may not be there.
fs::path hub_folder_of(const HubName& name);

/// The snapshot of a model in the cache, or an empty path. It may lack files.
fs::path find_snapshot(const HubName& name);

/// Whether a file begins like a page of HTML: what a login page of a network left in a cache whose
/// program did not check what it downloaded.
bool is_web_page(const fs::path& file);

/// The GGUF file of a snapshot that a name means (gguf_files_of), the first of its parts; an empty
/// path where there is none, or a part is missing.
fs::path gguf_in(const fs::path& snapshot, const std::string& type);

/// What a snapshot lacks to be used as a model: "model.safetensors", "its tokenizer"; "" where it
/// is complete. A web page in place of a small file is missing, too.
std::string missing_in(const fs::path& snapshot);

}  // namespace brrr::io
