#pragma once
// How prepare cuts text into pieces that can be encoded independently, in any order and by any
// number of threads, with the same tokens as the whole.

#include <cstdint>
#include <string>
#include <string_view>

namespace brrr::io {

/// The first position p >= from, p > 0, at which text may be cut without changing its tokens, or
/// text.size(). It lies before a space, tab or line end that follows a character which is surely no
/// white space.
///
/// Why this is exact for GPT-2's pattern
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// with text = A B, A ending in a non-space character x, B beginning with white space w:
///   1. No piece contains x followed by w. White space inside a piece is either the optional first
///      character of a word piece or a member of an all-space piece; a piece with x before w would
///      need white space behind a non-space. So a piece ends exactly at the cut.
///   2. The pieces of A are the same with and without B. Matching goes left to right, and the
///   choice at a
///      position depends on what follows only through greedy repetition and (?!\S). The repetitions
///      of non-space pieces stop at w as they stop at the end of the text; contractions need no
///      character beyond x. (?!\S) is asked only behind a run of white space, which in A is
///      followed by a character of A, because A ends in x.
///   3. The pieces of B do not depend on A: the pattern has no look-behind.
/// BPE merges only within pieces, and byte and character tokens only within characters, so the
/// tokens of A B are those of A followed by those of B.
size_t next_safe_cut(std::string_view text, size_t from);

/// Where training ends and validation begins.
struct SplitRule {
  uint64_t val_begin = ~uint64_t{0};  // position in all inputs laid end to end
  int64_t val_every = 0;              // every n-th document validates; 0: none
};

/// A place in the inputs, between two pieces.
struct PlanPosition {
  size_t file = 0;
  uint64_t offset = 0;        // in the file
  int64_t document = 0;       // documents begun before this place, empty ones not counted
  bool inside = false;        // the document is not finished
  uint64_t document_end = 0;  // a cache while inside: where it ends; 0: look for it
};

/// One piece of a file: [begin, end) is text; the next piece begins at `next` (behind a separator).
struct Piece {
  size_t file = 0;
  uint64_t begin = 0, end = 0, next = 0;
  bool ends_document = false;  // false also for an empty document
  bool validation = false;
};

struct PlanOptions {
  SplitRule split;
  std::string separator;      // between documents of one file; empty: a file is a document
  uint64_t piece_bytes = 0;   // about
  bool cut_anywhere = false;  // byte tokens
  bool cut_documents = true;  // false: a piece is a document (an unknown tokenizer)
};

/// The piece of `text` (the whole file `at.file`, which begins at `file_begin` of all inputs) at
/// `at`, and the position behind it. at.offset < text.size(). The sequence of documents and splits
/// does not depend on piece_bytes, and planning may begin at any position that it returned.
Piece next_piece(std::string_view text, uint64_t file_begin, const PlanOptions& options,
                 PlanPosition& at);

}  // namespace brrr::io
