#include "base/errors.h"

#include <algorithm>

#include "base/encoding/utf8.h"

namespace brrr {
namespace {

// A message that is longer than both together keeps this much of its beginning and of its end.
constexpr size_t kHeadBytes = 3000, kTailBytes = 1000;

/// Control characters, and marks that turn the direction of what follows them.
bool is_unprintable(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

std::string escaped(std::string_view text) {
  std::string out;
  const uint8_t *at = io::as_bytes(text.data()), *const end = at + text.size();
  while (at < end) {
    const io::DecodedChar c = io::decode_utf8(at, end);
    const bool plain = c.code != io::kInvalidByte && !is_unprintable(c.code);
    if (plain) out.append(reinterpret_cast<const char*>(at), c.bytes);
    for (uint32_t i = 0; i < c.bytes && !plain; ++i) out += fmt::format("\\x{:02x}", at[i]);
    at += c.bytes;
  }
  return out;
}

/// The first place from `at` on where a character may begin.
size_t next_character(std::string_view text, size_t at) {
  const size_t latest = std::min(text.size(), at + 3);
  while (at < latest && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) ++at;
  return at;
}

}  // namespace

std::string fit_for_a_line(std::string_view text) {
  if (text.size() <= kHeadBytes + kTailBytes) return escaped(text);
  const size_t head = next_character(text, kHeadBytes);
  const size_t tail = next_character(text, text.size() - kTailBytes);
  return fmt::format("{} [... {} bytes left out ...] {}", escaped(text.substr(0, head)),
                     tail - head, escaped(text.substr(tail)));
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(fmt::format("internal error: {}:{}: {} does not hold{}{}", file, line,
                                  condition, message.empty() ? "" : ": ", message));
}

}  // namespace brrr
