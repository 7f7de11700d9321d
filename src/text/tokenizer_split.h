#pragma once
// GPT-2's split of a text into pieces, which BPE then never merges across:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// written by hand: every byte belongs to exactly one piece, each piece is found in time linear in
// its length (plus one character of look-ahead), and an invalid UTF-8 byte counts as one character
// that is neither letter, number nor space.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/encoding/utf8.h"

namespace brrr::io {

enum class CharClass : uint8_t { kOther = 0, kLetter = 1, kNumber = 2, kSpace = 3 };

/// Classes of all code points, from the generated ranges. One instance per process, immutable.
class CharTable {
 public:
  static const CharTable& get();
  CharClass of(uint32_t code) const {
    if (code >= kCodePoints) return CharClass::kOther;
    return static_cast<CharClass>(packed_[code >> 2] >> (2 * (code & 3)) & 3);
  }

 private:
  static constexpr uint32_t kCodePoints = 0x110000;
  CharTable();
  std::vector<uint8_t> packed_;  // four classes per byte
};

inline bool is_ascii_letter(uint8_t c) { return static_cast<uint8_t>((c | 0x20) - 'a') < 26; }

/// The first byte at or after `p` that is not an ASCII letter.
inline const uint8_t* skip_ascii_letters(const uint8_t* p, const uint8_t* end) {
#if defined(__SSE2__)
  // Words are short and their lengths unpredictable: one vector compare instead of one mispredicted
  // branch per word. (c | 0x20) - 'a' < 26 becomes a signed compare after shifting 'a' to -128.
  while (end - p >= 16) {
    const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i lower = _mm_or_si128(text, _mm_set1_epi8(0x20));
    const __m128i shifted = _mm_sub_epi8(lower, _mm_set1_epi8(static_cast<char>('a' + 128)));
    const __m128i letter = _mm_cmplt_epi8(shifted, _mm_set1_epi8(-128 + 26));
    const auto others = static_cast<uint32_t>(_mm_movemask_epi8(letter)) ^ 0xffffu;
    if (others != 0) return p + std::countr_zero(others);
    p += 16;
  }
#endif
  while (p < end && is_ascii_letter(*p)) ++p;
  return p;
}

/// What skip_ascii_letters leaves: letters of any script.
inline const uint8_t* skip_letters(const CharTable& table, const uint8_t* p, const uint8_t* end) {
  for (;;) {
    p = skip_ascii_letters(p, end);
    if (p == end || *p < 0x80) return p;
    do {
      const DecodedChar c = decode_utf8(p, end);
      if (table.of(c.code) != CharClass::kLetter) return p;
      p += c.bytes;
    } while (p < end && *p >= 0x80);
  }
}

/// next_piece for pieces that are not ASCII words.
const uint8_t* next_piece_general(const CharTable& table, const uint8_t* p, const uint8_t* end);

/// The end of the piece that starts at `p`; p < end.
inline const uint8_t* next_piece(const CharTable& table, const uint8_t* p, const uint8_t* end) {
  const uint8_t* q = p + (*p == ' ' && end - p > 1);
  if (is_ascii_letter(*q)) [[likely]]
    return skip_letters(table, q + 1, end);
  return next_piece_general(table, p, end);
}

}  // namespace brrr::io
