#include "sampling/stop_strings.h"

#include <algorithm>
#include <utility>

namespace brrr::infer {
namespace {

/// How many bytes at the end of `text` may be the beginning of `string`.
size_t beginning_at_end(std::string_view text, std::string_view string) {
  for (size_t n = std::min(text.size(), string.size() - 1); n > 0; --n)
    if (text.ends_with(string.substr(0, n))) return n;
  return 0;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  std::erase(strings_, "");
}

std::string StopStrings::add(std::string_view text) {
  if (found_) return {};
  held_ += text;
  size_t first = std::string::npos, undecided = 0;
  for (const std::string& string : strings_) {
    first = std::min(first, held_.find(string));
    undecided = std::max(undecided, beginning_at_end(held_, string));
  }
  found_ = first != std::string::npos;
  const size_t certain = found_ ? first : held_.size() - undecided;
  std::string before = held_.substr(0, certain);
  held_ = found_ ? "" : held_.substr(certain);
  return before;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace brrr::infer
