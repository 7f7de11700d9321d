#include "backend/cuda/cubin_cache.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "base/errors.h"
#include "base/sha256.h"

namespace brrr::cuda {
namespace {

constexpr std::string_view kMagic = "brrr cubin 1\n";

// The file: magic, SHA-256 of the code, line end, the code.
std::optional<std::string> read_entry(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  std::string text;
  try {
    text = read_file(path);
  } catch (const UserError&) {
    return std::nullopt;
  }
  const size_t head = kMagic.size() + 65;
  if (text.size() <= head || !text.starts_with(kMagic)) return std::nullopt;
  std::string code = text.substr(head);
  if (sha256_hex(code) != text.substr(kMagic.size(), 64)) return std::nullopt;
  return code;
}

void write_entry(const fs::path& path, const std::string& code) {
  try {
    create_folder(path.parent_path());
    write_cache_file(path, fmt::format("{}{}\n", kMagic, sha256_hex(code)) + code);
  } catch (const UserError&) {  // it is compiled again the next time
  }
}

}  // namespace

fs::path CubinCache::path_of(const std::string& text) const {
  return folder_ / (sha256_hex(compiler_ + '\0' + text).substr(0, 40) + ".cubin");
}

std::vector<std::string> CubinCache::get(
    const std::vector<std::string>& texts,
    const std::function<std::string(const std::string&)>& compile) const {
  std::vector<std::string> codes(texts.size());
  std::vector<size_t> missing;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (auto code = read_entry(path_of(texts[i])))
      codes[i] = std::move(*code);
    else
      missing.push_back(i);
  }
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    for (size_t i; (i = next++) < missing.size();) {
      try {
        std::string& code = codes[missing[i]];
        code = compile(texts[missing[i]]);
        write_entry(path_of(texts[missing[i]]), code);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    }
  };
  const size_t most = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(most, missing.size()); ++i) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
  if (failure) std::rethrow_exception(failure);
  return codes;
}

}  // namespace brrr::cuda
