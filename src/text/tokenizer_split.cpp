#include "text/tokenizer_split.h"

#include "text/tokenizer_unicode.h"

namespace brrr::io {

CharTable::CharTable() : packed_(kCodePoints / 4) {
  const auto mark = [this](const auto& ranges, CharClass c) {
    for (const CodePointRange& range : ranges)
      for (uint32_t code = range.first; code <= range.last; ++code)
        packed_[code >> 2] =
            static_cast<uint8_t>(packed_[code >> 2] | static_cast<unsigned>(c) << (2 * (code & 3)));
  };
  mark(kLetterRanges, CharClass::kLetter);
  mark(kNumberRanges, CharClass::kNumber);
  mark(kSpaceRanges, CharClass::kSpace);
}

const CharTable& CharTable::get() {
  static const CharTable table;
  return table;
}

namespace {

/// Bytes of 's 't 'm 'd 're 've 'll at `p` (an apostrophe), else 0.
size_t contraction(const uint8_t* p, const uint8_t* end) {
  if (end - p < 2) return 0;
  const uint8_t a = p[1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (end - p < 3) return 0;
  const uint8_t b = p[2];
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

}  // namespace

const uint8_t* next_piece_general(const CharTable& table, const uint8_t* p, const uint8_t* end) {
  if (*p == '\'')
    if (const size_t bytes = contraction(p, end)) return p + bytes;

  const uint8_t* q = p + (*p == ' ' && end - p > 1);
  DecodedChar c = decode_utf8(q, end);
  const CharClass wanted = table.of(c.code);
  if (wanted != CharClass::kSpace) {
    q += c.bytes;
    if (wanted == CharClass::kLetter) return skip_letters(table, q, end);
    while (q < end) {
      c = decode_utf8(q, end);
      if (table.of(c.code) != wanted) break;
      q += c.bytes;
    }
    return q;
  }

  // White space: all of it at the end of the text; otherwise the last one is left to the next piece
  // (` ?` takes it if it is a plain space), unless it is the only one.
  q = p;
  const uint8_t* last = p;
  while (q < end) {
    c = decode_utf8(q, end);
    if (table.of(c.code) != CharClass::kSpace) return last == p ? q : last;
    last = q;
    q += c.bytes;
  }
  return end;
}

}  // namespace brrr::io
