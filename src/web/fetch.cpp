#include "web/fetch.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/cache.h"
#include "base/env.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/sha256.h"
#include "web/program.h"

namespace brrr::io {

const RemoteFile kTinyShakespeare = {
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", "shakespeare/input.txt"};
const RemoteFile kGpt2Vocab = {
    "https://huggingface.co/openai-community/gpt2/resolve/main/vocab.json",
    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783", "gpt2/vocab.json"};
const RemoteFile kGpt2Merges = {
    "https://huggingface.co/openai-community/gpt2/resolve/main/merges.txt",
    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5", "gpt2/merges.txt"};

namespace {

void transfer(const std::string& url, const fs::path& to, const fs::path& destination) {
  const std::string target = to.string();
  auto outcome = run_program({"curl", "--fail", "--location", "--silent", "--show-error",
                              "--connect-timeout", "5", "--speed-time", "10", "--speed-limit",
                              "1000", "--output", target, "--", url});
  std::string program = "curl";
  if (!outcome) {
    outcome = run_program({"wget", "--no-verbose", "--tries=1", "--dns-timeout=5",
                           "--connect-timeout=5", "--read-timeout=10", "-O", target, "--", url});
    program = "wget";
  }
  if (!outcome)
    user_error(
        "cannot download {}: neither curl nor wget is installed; install one (apt install curl), "
        "or "
        "put the file at {}",
        url, destination.string());
  if (!outcome->is_success())
    user_error("cannot download {}: {}; check the connection, or put the file at {}", url,
               outcome->failure_of(program), destination.string());
}

/// Both tokenizer files in one folder.
bool holds_gpt2(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "vocab.json", error) &&
         fs::is_regular_file(folder / "merges.txt", error);
}

std::optional<fs::path> gpt2_of_hub(const fs::path& hub) {
  for (const char* model : {"models--openai-community--gpt2", "models--gpt2"}) {
    std::vector<fs::path> snapshots;
    std::error_code error;
    for (fs::directory_iterator it(hub / model / "snapshots", error), end; !error && it != end;
         it.increment(error))
      snapshots.push_back(it->path());
    std::sort(snapshots.begin(), snapshots.end());
    for (const fs::path& snapshot : snapshots)
      if (holds_gpt2(snapshot)) return snapshot;
  }
  return std::nullopt;
}

}  // namespace

void download(const std::string& url, const std::string& sha256, const fs::path& destination) {
  if (env::get("BRRR_OFFLINE"))
    user_error("cannot download {}: BRRR_OFFLINE is set; unset it, or put the file at {}", url,
               destination.string());
  create_folder(destination.parent_path());
  const fs::path temporary = temporary_beside(destination);
  ::unlink(temporary.c_str());  // the transfer must not write through a link
  try {
    transfer(url, temporary, destination);
    const std::string found = sha256_of_file(temporary);
    if (found != sha256)
      user_error(
          "{} has sha256 {}; expected {}: the file at its source changed, or the transfer was "
          "tampered with; nothing was kept",
          url, found, sha256);
    std::error_code error;
    fs::rename(temporary, destination, error);
    if (error) user_error("cannot write {}: {}", destination.string(), error.message());
    sync_folder(destination.parent_path());
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

fs::path fetch_cached(const RemoteFile& file) {
  const fs::path path = cache_folder() / file.cache_name;
  std::error_code error;
  if (fs::is_regular_file(path, error) && sha256_of_file(path) == file.sha256) return path;
  download(file.url, file.sha256, path);
  return path;
}

fs::path find_gpt2_tokenizer() {
  if (const auto data = env::get("BRRR_DATA"))
    if (holds_gpt2(fs::path(*data) / "gpt2")) return fs::path(*data) / "gpt2";
  if (const auto snapshot = gpt2_of_hub(hugging_face_cache())) return *snapshot;
  try {
    const fs::path vocab = fetch_cached(kGpt2Vocab);
    fetch_cached(kGpt2Merges);
    return vocab.parent_path();
  } catch (const UserError& error) {
    user_error(
        "GPT-2's tokenizer (vocab.json and merges.txt) was not found in $BRRR_DATA/gpt2, the "
        "Hugging "
        "Face cache or the cache of Brrr, and fetching it failed: {}. With both files in a folder, "
        "name it: --tokenizer FOLDER",
        error.what());
  }
}

}  // namespace brrr::io
