#include "data/prepare_plan.h"

#include <algorithm>

#include "base/errors.h"
#include "base/utf8.h"

namespace brrr::io {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// White space of Unicode above ASCII (property White_Space); what every \s means.
bool is_wide_space(uint32_t code) {
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
         code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

/// Is the character that ends before `at` surely no white space? Invalid UTF-8 and control
/// characters, on which implementations differ, are not sure.
bool follows_non_space(std::string_view text, size_t at) {
  const auto last = static_cast<unsigned char>(text[at - 1]);
  if (last < 0x80) return last > 0x20 && last < 0x7f;
  size_t begin = at - 1;
  while (begin > 0 && at - begin < 4 && is_continuation(text[begin])) --begin;
  const DecodedChar c = decode_utf8(as_bytes(text.data() + begin), as_bytes(text.data() + at));
  return c.code != kInvalidByte && begin + c.bytes == at && !is_wide_space(c.code);
}

}  // namespace

size_t next_safe_cut(std::string_view text, size_t from) {
  for (size_t at = std::max<size_t>(from, 1); at < text.size(); ++at) {
    at = text.find_first_of(" \n\r\t", at);
    if (at == std::string_view::npos) break;
    if (follows_non_space(text, at)) return at;
  }
  return text.size();
}

Piece next_piece(std::string_view text, uint64_t file_begin, const PlanOptions& options,
                 PlanPosition& at) {
  BRRR_CHECK(at.offset < text.size(), "offset {} of {}", at.offset, text.size());
  const std::string_view rest = text.substr(at.offset);
  if (!at.inside || at.document_end == 0) {
    const size_t found =
        options.separator.empty() ? std::string_view::npos : rest.find(options.separator);
    at.document_end = at.offset + std::min(found, rest.size());
  }
  size_t end = at.document_end - at.offset;
  size_t next = std::min(end + options.separator.size(), rest.size());

  Piece piece{.file = at.file, .begin = at.offset};
  if (!at.inside && end > 0) ++at.document;
  bool document_ends = end > 0;
  const uint64_t begin = file_begin + at.offset;
  const SplitRule& split = options.split;
  piece.validation = begin >= split.val_begin ||
                     (split.val_every > 0 && at.document > 0 && at.document % split.val_every == 0);
  const auto cut = [&](size_t position) {
    if (position < end) end = next = position, document_ends = false;
  };
  if (begin < split.val_begin && split.val_begin - begin < end) {
    auto position = static_cast<size_t>(split.val_begin - begin);
    while (position < end && is_continuation(rest[position])) ++position;
    cut(position);
  }
  if (options.cut_documents && options.piece_bytes < end) {
    const size_t target = std::max<uint64_t>(options.piece_bytes, 1);
    cut(options.cut_anywhere ? target : next_safe_cut(rest.substr(0, end), target));
  }
  piece.end = at.offset + end;
  piece.next = at.offset + next;
  piece.ends_document = document_ends;
  at.offset = piece.next;
  at.inside = end > 0 && !document_ends;
  return piece;
}

}  // namespace brrr::io
