#pragma once
// Random texts that tests/golden/make_bpe_goldens.py and make_tokenizer_goldens.py make, too.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/encoding/utf8.h"
#include "base/rng.h"

namespace brrr::test {

using io::append_utf8;
using io::as_bytes;
using io::decode_utf8;
using io::DecodedChar;

inline constexpr uint32_t kTextSeed = 20240521;

inline const char* const kWords[] = {" the",    " of",
                                     "Hello",   " world",
                                     "ing",     " Internationalization",
                                     "don't",   "I'LL",
                                     "HTTP",    " antidisestablish",
                                     "foo_bar", "://",
                                     "...",     " ---",
                                     "==",      "()",
                                     "};",      "\r\n",
                                     "naïve",   " Größe",
                                     "привет",  " мир",
                                     "日本語",  "한국어",
                                     "العربية", "हिन्दी",
                                     "ไทย",     "👩‍👩‍👧",
                                     "🇩🇪",      "e\u0301"};
inline const char* const kContractions[] = {"'s", "'t",  "'re", "'ve", "'m",  "'ll",     "'d",
                                            "'S", "'LL", "'r",  "'",   "''s", "\u2019s", " 's"};
inline const char* const kNumbers[] = {"²", "½", "٣", "Ⅷ",     "〇",   "१",
                                       "𝟗", "①", "৳", "1,000", "3.14", "0x1F"};
inline constexpr uint32_t kSpaces[] = {0x20,   0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x85,
                                       0xA0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                       0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A, 0x2028,
                                       0x2029, 0x202F, 0x205F, 0x3000, 0x200B, 0x180E, 0xFEFF};
inline constexpr uint32_t kMarks[] = {0x200D, 0xFE0F, 0x200C, 0x20E3};

inline uint32_t skip_surrogates(uint32_t code) { return code >= 0xD800 ? code + 0x800 : code; }

/// random_text of make_bpe_goldens.py, letter for letter.
inline std::string random_text(uint32_t index) {
  RngStream words({.seed = kTextSeed, .step = 0}, index);
  std::string out;
  const auto put = [&out](uint32_t code) { append_utf8(out, code); };
  const uint32_t segments = words.next_u32() % 12;
  for (uint32_t segment = 0; segment < segments; ++segment) {
    const uint32_t kind = words.next_u32() % 18;
    const uint32_t count = 1 + words.next_u32() % 8;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t r = words.next_u32();
      switch (kind) {
        case 0:
          out += kWords[r % std::size(kWords)];
          break;
        case 1:
          out += kContractions[r % std::size(kContractions)];
          break;
        case 2:
          out += kNumbers[r % std::size(kNumbers)];
          break;
        case 3:
          put(kSpaces[r % std::size(kSpaces)]);
          break;
        case 4:
          put(' ');
          break;
        case 5:
          put('a' + r % 26);
          break;
        case 6:
          put(0x20 + r % 95);
          break;
        case 7:
          put('0' + r % 10);
          break;
        case 8:
          put(r >> 31 ? r % 0x20 : 0x7F + r % 0x21);
          break;
        case 9:
          put(0x80 + r % 0x1D0);
          break;
        case 10:
          put(0x300 + r % 0x70);
          break;
        case 11:
          put(0x370 + r % 0x6D0);
          break;
        case 12:
          put(0x3040 + r % 0xC0);
          break;
        case 13:
          put(0x4E00 + r % 0x51A5);
          break;
        case 14:
          put(r & 1 ? kMarks[r >> 30] : 0x1F300 + (r >> 1) % 0x600);
          break;
        case 15:
          put(0xAC00 + r % 0x2BA4);
          break;
        case 16:
          put(skip_surrogates(r % 0xF800));
          break;
        default:
          put(skip_surrogates(r % 0x10F800));
          break;
      }
    }
  }
  return out;
}

/// One step of FNV-1a over 32-bit words.
inline uint64_t fnv(uint64_t hash, uint32_t number) { return (hash ^ number) * 0x100000001B3u; }

inline constexpr uint64_t kHashStart = 0xCBF29CE484222325u;

/// The hash after the code points of a text, or ids, and the end of them.
inline uint64_t hash_text(uint64_t hash, std::string_view text) {
  const uint8_t* const end = as_bytes(text.data() + text.size());
  for (const uint8_t* p = as_bytes(text.data()); p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    hash = fnv(hash, c.code);
    p += c.bytes;
  }
  return fnv(hash, 0xFFFFFFFF);
}
inline uint64_t hash_ids(uint64_t hash, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) hash = fnv(hash, static_cast<uint32_t>(id));
  return fnv(hash, 0xFFFFFFFF);
}

}  // namespace brrr::test
