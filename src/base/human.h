#pragma once
// Numbers as people read them: 36,012 / 2 threads / 1:02:03 / 12.3 ms / 12.3 MB.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace brrr {

/// "-1,234,567".
inline std::string with_commas(int64_t value) {
  std::string digits = std::to_string(value);
  const int64_t first = digits[0] == '-' ? 1 : 0;
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > first; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

/// "1 thread", "2,000 threads".
inline std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", with_commas(count), noun, count == 1 ? "" : "s");
}

/// A time left or gone by, as clocks show it: "0:41", "1:02:03", "2d 03:04:05"; "?" when it is not
/// finite or negative.
inline std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const auto total = static_cast<int64_t>(std::llround(seconds));
  const int64_t days = total / 86'400, hours = total / 3600 % 24, minutes = total / 60 % 60,
                rest = total % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}:{:02}", days, hours, minutes, rest);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, rest);
  return fmt::format("{}:{:02}", minutes, rest);
}

/// How long something took: "3.20 us", "12.3 ms", "12.0 s", "2 min 5 s", "1 h 2 min"; "?" when it
/// is not finite or negative.
inline std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  if (seconds >= 59.95) {
    const auto total = static_cast<int64_t>(std::llround(seconds));
    const int64_t hours = total / 3600, minutes = total / 60 % 60;
    if (hours > 0) return fmt::format("{} h {} min", with_commas(hours), minutes);
    return fmt::format("{} min {} s", minutes, total % 60);
  }
  constexpr std::pair<double, const char*> kUnits[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}};
  for (const auto& [length, unit] : kUnits) {
    const double value = seconds / length;
    if (value < 0.9995 && length > 1e-6) continue;
    return fmt::format("{:.{}f} {}", value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, unit);
  }
  return "";
}

/// "just now", "5 minutes ago", "1 hour ago", "3 days ago".
inline std::string ago(double seconds) {
  constexpr std::pair<double, const char*> kUnits[] = {
      {86'400, "day"}, {3600, "hour"}, {60, "minute"}, {1, "second"}};
  for (const auto& [length, unit] : kUnits)
    if (seconds >= length) return counted(static_cast<int64_t>(seconds / length), unit) + " ago";
  return "just now";
}

/// "812 B", "12.3 MB": powers of 1000, three digits, for files, text and rates. Memory is in MiB:
/// memory_text().
inline std::string format_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (std::fabs(bytes) >= 999.5 && unit + 1 < std::size(kUnits)) bytes /= 1000, ++unit;
  const int decimals = unit == 0 || std::fabs(bytes) >= 99.95 ? 0
                       : std::fabs(bytes) >= 9.995            ? 1
                                                              : 2;
  return fmt::format("{:.{}f} {}", bytes, decimals, kUnits[unit]);
}

/// "a, b and 880 more": the beginning of a list that may be long.
inline std::string listed(const std::vector<std::string>& items, size_t most = 20) {
  const size_t shown = std::min(items.size(), most);
  std::string text;
  for (size_t i = 0; i < shown; ++i) text.append(i == 0 ? "" : ", ").append(items[i]);
  if (shown < items.size())
    text += fmt::format(" and {} more", with_commas(static_cast<int64_t>(items.size() - shown)));
  return text;
}

/// As one word of a shell's command line: in quotes where it needs them.
inline std::string shell_word(const std::string& text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-+=./:,@%").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace brrr
