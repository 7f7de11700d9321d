#pragma once
// Fields of protocol buffers, for tests that make small files.

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace brrr::test {

inline std::string varint_bytes(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}
inline std::string varint_field(uint32_t field, uint64_t value) {
  return varint_bytes(field << 3) + varint_bytes(value);
}
inline std::string bytes_field(uint32_t field, std::string_view bytes) {
  return varint_bytes(field << 3 | 2) + varint_bytes(bytes.size()) + std::string(bytes);
}
inline std::string number_field(uint32_t field, float value) {
  std::string out = varint_bytes(field << 3 | 5);
  for (int shift = 0; shift < 32; shift += 8)
    out.push_back(static_cast<char>(std::bit_cast<uint32_t>(value) >> shift & 0xff));
  return out;
}

/// A piece of SentencePiece's ModelProto.
inline std::string piece_field(std::string_view text, float score, uint64_t kind = 1) {
  return bytes_field(1, bytes_field(1, text) + number_field(2, score) + varint_field(3, kind));
}

}  // namespace brrr::test
