#include "text/bpe/byte_letters.h"

#include <algorithm>

#include "base/encoding/utf8.h"

namespace brrr::io {

const std::array<uint16_t, 256>& byte_letters() {
  static const auto table = [] {
    std::array<uint16_t, 256> letters{};
    uint16_t next = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
      letters[b] = printable ? static_cast<uint16_t>(b) : next++;
    }
    return letters;
  }();
  return table;
}

const std::array<uint8_t, 256>& bytes_by_letter() {
  static const auto table = [] {
    std::array<uint8_t, 256> order{};
    for (size_t b = 0; b < 256; ++b) order[b] = static_cast<uint8_t>(b);
    std::sort(order.begin(), order.end(),
              [](uint8_t a, uint8_t b) { return byte_letters()[a] < byte_letters()[b]; });
    return order;
  }();
  return table;
}

bool spell_bytes(std::string_view name, std::string& out) {
  static const auto byte_of = [] {
    std::array<int16_t, 324> bytes;
    bytes.fill(-1);
    for (size_t b = 0; b < 256; ++b) bytes[byte_letters()[b]] = static_cast<int16_t>(b);
    return bytes;
  }();
  const size_t start = out.size();
  const uint8_t* p = as_bytes(name.data());
  const uint8_t* const end = p + name.size();
  while (p < end) {
    const DecodedChar c = decode_utf8(p, end);
    if (c.code >= byte_of.size() || byte_of[c.code] < 0) {
      out.resize(start);
      return false;
    }
    out.push_back(static_cast<char>(byte_of[c.code]));
    p += c.bytes;
  }
  return true;
}

std::string spell_letters(std::string_view bytes) {
  std::string name;
  for (const char c : bytes) append_utf8(name, byte_letters()[static_cast<uint8_t>(c)]);
  return name;
}

}  // namespace brrr::io
