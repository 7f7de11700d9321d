#include "base/encoding/utf8.h"

#include <cstring>

namespace brrr::io {

std::optional<size_t> find_invalid_utf8(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (bytes.size() - at >= 8) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + at, 8);
      if ((word & 0x8080808080808080u) == 0) {
        at += 8;
        continue;
      }
    }
    const DecodedChar c =
        decode_utf8(as_bytes(bytes.data() + at), as_bytes(bytes.data() + bytes.size()));
    if (c.code == kInvalidByte) return at;
    at += c.bytes;
  }
  return std::nullopt;
}

}  // namespace brrr::io
