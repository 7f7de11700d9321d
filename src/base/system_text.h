#pragma once
// Reads small text files, mainly of /proc and /sys, which may be absent or incomplete.

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace brrr::system_text {

/// Reads the whole file. Returns "" when it cannot be opened or read: /proc/PID/stat, for example,
/// opens while the process is alive, and reading it fails with ESRCH once the process has ended.
/// std::istreambuf_iterator would throw std::ios_base::failure in that case.
inline std::string read_or_empty(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"),
                                                             &std::fclose);
  if (file == nullptr) return {};
  std::string text;
  char chunk[4096];
  while (const size_t count = std::fread(chunk, 1, sizeof(chunk), file.get()))
    text.append(chunk, count);
  return std::ferror(file.get()) == 0 ? text : std::string();
}

inline std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

/// The decimal number that `text` begins with, or nothing.
inline std::optional<int64_t> number(std::string_view text) {
  text = trimmed(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

/// Calls visit(line) for each line, without its end.
template <typename Visit>
void each_line(std::string_view text, Visit&& visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace brrr::system_text
