#pragma once
// Downloads into the cache. Brrr speaks no TLS of its own: curl, else wget, runs as a child process
// (no shell in between). A file appears in the cache complete and with the expected SHA-256, or not
// at all; what lies in the cache is verified again every time it is asked for.

#include <filesystem>
#include <string>

namespace brrr::io {

/// One file on the net, known by its content.
struct RemoteFile {
  std::string url;
  std::string sha256;      // 64 lower-case hexadecimal digits
  std::string cache_name;  // path below the cache folder
};

extern const RemoteFile kTinyShakespeare;
extern const RemoteFile kGpt2Vocab;
extern const RemoteFile kGpt2Merges;

/// Downloads `url` to `destination` and verifies its SHA-256; gives up after five seconds without a
/// connection. Throws UserError: BRRR_OFFLINE is set, neither curl nor wget exists, the transfer
/// failed (with the program's own reason), or the content is another.
void download(const std::string& url, const std::string& sha256,
              const std::filesystem::path& destination);

/// The file in the cache, downloaded when it is absent or damaged.
std::filesystem::path fetch_cached(const RemoteFile& file);

/// A folder that holds GPT-2's vocab.json and merges.txt: $BRRR_DATA/gpt2, the Hugging Face
/// cache, our cache, the net. Throws UserError that says what was tried and what to do.
std::filesystem::path find_gpt2_tokenizer();

}  // namespace brrr::io
