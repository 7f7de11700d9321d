#include "data/prepare/prepare_plan.h"

#include <algorithm>

#include "base/encoding/utf8.h"
#include "base/errors.h"

namespace brrr::io {
namespace {

/// Is `offset` the first character of the validation text?
bool begins_validation(std::string_view text, uint64_t file_begin, const SplitRule& split,
                       uint64_t offset) {
  if (split.val_begin < file_begin || split.val_begin > file_begin + offset) return false;
  const std::string_view between =
      text.substr(split.val_begin - file_begin, file_begin + offset - split.val_begin);
  return std::all_of(between.begin(), between.end(), is_continuation);
}

}  // namespace

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
  piece.begins_text = !at.inside || begins_validation(text, file_begin, options.split, at.offset);
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
  if (options.piece_bytes < end) {
    const size_t target = std::max<uint64_t>(options.piece_bytes, 1);
    cut(options.cut_anywhere ? target : options.cuts.next(rest.substr(0, end), target));
  }
  piece.end = at.offset + end;
  piece.next = at.offset + next;
  piece.ends_document = document_ends;
  at.offset = piece.next;
  at.inside = end > 0 && !document_ends;
  return piece;
}

}  // namespace brrr::io
