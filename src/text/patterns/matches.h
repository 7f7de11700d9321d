#pragma once
// All matches of a pattern in a text, one behind the other, as `tokenizers` finds them.

#include <optional>
#include <string_view>

#include "base/encoding/utf8.h"
#include "text/patterns/split_pattern.h"

namespace brrr::io {

/// on_match(begin, end) in the order of the text, which is UTF-8. An empty match right behind a
/// match is none; any other counts.
template <typename OnMatch>
void for_each_match(const SplitPattern& pattern, std::string_view text, OnMatch&& on_match) {
  std::optional<size_t> last_end;
  for (size_t from = 0; from <= text.size();) {
    const auto match = pattern.find(text, from);
    if (!match) break;
    const auto [begin, end] = *match;
    if (begin == end && last_end == end) {
      if (from == text.size()) break;
      from += decode_utf8(as_bytes(text.data()) + from, as_bytes(text.data()) + text.size()).bytes;
      continue;
    }
    on_match(begin, end);
    last_end = from = end;
  }
}

/// on_text(stretch) for what is UTF-8, on_bytes(stretch) for runs of bytes that are not.
template <typename OnText, typename OnBytes>
void for_each_valid_stretch(std::string_view text, OnText&& on_text, OnBytes&& on_bytes) {
  while (!text.empty()) {
    const size_t good = find_invalid_utf8(text).value_or(text.size());
    if (good > 0) on_text(text.substr(0, good));
    text.remove_prefix(good);
    size_t bad = 0;
    while (bad < text.size() &&
           decode_utf8(as_bytes(text.data()) + bad, as_bytes(text.data()) + text.size()).code ==
               kInvalidByte)
      ++bad;
    if (bad > 0) on_bytes(text.substr(0, bad));
    text.remove_prefix(bad);
  }
}

}  // namespace brrr::io
