#pragma once
// UTF-8 for the tokenizers: decoding that never reads past the end and calls every byte that does
// not start a well-formed sequence (Unicode 16, table 3-7: no overlong forms, no surrogates)
// invalid by itself, so that any bytes at all have exactly one reading.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace brrr::io {

/// Whether `c` continues a character: 10xxxxxx.
inline bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

inline constexpr uint32_t kInvalidByte = 0xffffffffu;

struct DecodedChar {
  uint32_t code;   // code point, or kInvalidByte
  uint32_t bytes;  // 1 to 4; 1 for an invalid byte
};

/// The character at `p`; p < end.
inline DecodedChar decode_utf8(const uint8_t* p, const uint8_t* end) {
  const uint32_t a = p[0];
  if (a < 0x80) return {a, 1};
  const ptrdiff_t left = end - p;
  const auto is_tail = [p](int i) { return (p[i] & 0xc0) == 0x80; };
  if (a >= 0xc2 && a < 0xe0) {
    if (left >= 2 && is_tail(1)) return {(a & 0x1f) << 6 | (p[1] & 0x3fu), 2};
  } else if (a >= 0xe0 && a < 0xf0) {
    if (left >= 3 && is_tail(1) && is_tail(2)) {
      const uint32_t code = (a & 0x0f) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
      if (code >= 0x800 && (code < 0xd800 || code > 0xdfff)) return {code, 3};
    }
  } else if (a >= 0xf0 && a < 0xf5) {
    if (left >= 4 && is_tail(1) && is_tail(2) && is_tail(3)) {
      const uint32_t code =
          (a & 0x07) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
      if (code >= 0x10000 && code <= 0x10ffff) return {code, 4};
    }
  }
  return {kInvalidByte, 1};
}

/// Appends a code point (not a surrogate, at most 0x10ffff).
inline void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

/// Offset of the first byte that is not part of well-formed UTF-8 (RFC 3629: no overlong forms, no
/// surrogates, nothing above U+10FFFF).
std::optional<size_t> find_invalid_utf8(std::string_view bytes);

inline const uint8_t* as_bytes(const char* p) { return reinterpret_cast<const uint8_t*>(p); }

}  // namespace brrr::io
