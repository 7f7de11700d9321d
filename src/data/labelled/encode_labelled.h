#pragma once
// Texts with labels to rows of ids, as the models of the BERT family take them.

#include <cstdint>
#include <string>
#include <vector>

#include "data/labelled/labelled_batches.h"
#include "data/labelled/labelled_file.h"
#include "text/tokenizer.h"

namespace brrr::io {

struct EncodedFile {
  std::vector<EncodedRow> rows;    // one for each row of the file, in its order
  int64_t cut_rows = 0;            // rows that were longer than the context
  std::vector<std::string> notes;  // for the user
};

/// Encodes every row: its text or pair of texts with special tokens around, or its words, of which
/// the first token has the tag and the others kIgnoreId. Rows are the same for any number of
/// threads. What is longer than `context` tokens is cut, which a note says once; with `truncate`
/// false it is an error instead. Throws UserError, with the line, for a row that is too long then,
/// has no tokens, or that the tokenizer refuses.
EncodedFile encode_labelled(const LabelledFile& file, const Tokenizer& tokenizer, int64_t context,
                            bool truncate = true);

}  // namespace brrr::io
