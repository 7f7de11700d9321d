#pragma once
// How prepare cuts text into pieces that can be encoded independently, in any order and by any
// number of threads, with the same tokens as the whole.

#include <cstdint>
#include <string>
#include <string_view>

#include "text/cut_rule.h"

namespace brrr::io {

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
  bool begins_text = false;    // it does not continue the piece before it
  bool ends_document = false;  // false also for an empty document
  bool validation = false;
};

struct PlanOptions {
  SplitRule split;
  std::string separator;      // between documents of one file; empty: a file is a document
  uint64_t piece_bytes = 0;   // about
  bool cut_anywhere = false;  // byte tokens
  CutRule cuts;               // the tokenizer's; where it never cuts, a piece is a document
};

/// The piece of `text` (the whole file `at.file`, which begins at `file_begin` of all inputs) at
/// `at`, and the position behind it. at.offset < text.size(). The sequence of documents and splits
/// does not depend on piece_bytes, and planning may begin at any position that it returned.
Piece next_piece(std::string_view text, uint64_t file_begin, const PlanOptions& options,
                 PlanPosition& at);

}  // namespace brrr::io
