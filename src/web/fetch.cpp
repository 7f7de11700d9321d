#include "web/fetch.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "base/cache.h"
#include "base/env.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/sha256.h"

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

struct Outcome {
  int exit_status;      // as waitpid gives it
  std::string message;  // what the program wrote to stderr
};

/// Runs a program found on PATH; nothing when there is no such program.
std::optional<Outcome> run_program(const std::vector<std::string>& arguments) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) user_error("cannot create a pipe: {}", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (error != 0) {
    ::close(ends[0]);
    return std::nullopt;
  }
  Outcome outcome{};
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t n = ::read(ends[0], buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    outcome.message.append(buffer.data(), static_cast<size_t>(n));
  }
  ::close(ends[0]);
  while (::waitpid(child, &outcome.exit_status, 0) < 0 && errno == EINTR) {
  }
  return outcome;
}

/// The last non-empty line, where programs say why they stopped.
std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

std::string failure_of(const std::string& program, const Outcome& outcome) {
  std::string reason = last_line(outcome.message);
  if (!WIFEXITED(outcome.exit_status)) return program + " was killed";
  if (reason.empty()) reason = fmt::format("exit status {}", WEXITSTATUS(outcome.exit_status));
  return reason.starts_with(program) ? reason : program + ": " + reason;
}

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
  if (outcome->exit_status != 0)
    user_error("cannot download {}: {}; check the connection, or put the file at {}", url,
               failure_of(program, *outcome), destination.string());
}

/// Both tokenizer files in one folder.
bool holds_gpt2(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "vocab.json", error) &&
         fs::is_regular_file(folder / "merges.txt", error);
}

std::vector<fs::path> hugging_face_hubs() {
  std::vector<fs::path> hubs;
  if (const auto home = env::get("HF_HOME")) hubs.push_back(fs::path(*home) / "hub");
  if (const auto cache = env::get("XDG_CACHE_HOME"))
    hubs.push_back(fs::path(*cache) / "huggingface" / "hub");
  if (const auto home = env::get("HOME"))
    hubs.push_back(fs::path(*home) / ".cache" / "huggingface" / "hub");
  return hubs;
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
          "{} has sha256 {}, {} was expected: the file at its source changed, or the transfer "
          "was tampered with; nothing was kept",
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
  for (const fs::path& hub : hugging_face_hubs())
    if (const auto snapshot = gpt2_of_hub(hub)) return *snapshot;
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
