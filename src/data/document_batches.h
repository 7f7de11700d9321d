#pragma once
// Batches of whole documents; one that is longer than T tokens is split. No sequence reaches into
// the next document. Rows are grouped by the step, so that a step has the same rows however it is
// cut into batches.
//
// Padded, a row is a document, and a batch is as long as its longest row, rounded up to one of a
// few lengths: programs have fixed shapes. Flat (BatchOptions::flat), a row is several documents of
// together at most T tokens, each a sequence of its own. Which documents share a row depends on
// their lengths and the seed; every epoch reads the rows in another order.

#include <optional>
#include <span>
#include <vector>

#include "data/batch_source.h"
#include "data/row_order.h"
#include "data/token_source.h"

namespace brrr::io {

/// Tokens [begin, end) of a source.
struct Document {
  int64_t begin = 0, end = 0;
};

/// The documents of a source in which each ends with the token `end_of_text`, which belongs to it;
/// the last may lack it. Reads every token.
std::vector<Document> find_documents(const TokenSource& source, int32_t end_of_text);

/// Lengths for batches of up to `context` tokens: its quarters, rounded up to a multiple of 8.
std::vector<int64_t> quarter_lengths(int64_t context);

/// Returns the number of sequences of at most `context` tokens that the documents make.
int64_t document_rows(const std::vector<Document>& documents, int64_t context);
/// Returns the number of documents that are split, because they have more targets than `context`.
int64_t split_documents(const std::vector<Document>& documents, int64_t context);

/// The sequences of each row: row r holds the sequences order[ends[r - 1]] to order[ends[r] - 1].
struct PackedRows {
  std::vector<uint32_t> order;
  std::vector<size_t> ends;
  size_t rows() const { return ends.size(); }
  std::span<const uint32_t> row(size_t r) const {
    const size_t begin = r == 0 ? 0 : ends[r - 1];
    return std::span(order).subspan(begin, ends[r] - begin);
  }
};
/// Packs sequences of the given lengths, each from 1 to `capacity`, into rows of at most `capacity`
/// tokens and `most` sequences by best fit decreasing (Johnson et al. 1974). `seed` decides the
/// order of sequences of equal length. No two rows of fewer than `most` sequences would fit into
/// one, so rows are more than half full on average.
PackedRows pack_rows(std::span<const int64_t> lengths, int64_t capacity, int64_t most,
                     uint32_t seed);

/// Reads the tokens of a row from `begin` on, and as targets the token that follows each of them.
/// Where `learnt` is not empty, it has a mark for each token of the source, and targets without one
/// become kIgnoreId. Returns the number of targets that are scored. Throws UserError for ids
/// outside the vocabulary.
int64_t read_with_targets(const TokenSource& source, int64_t begin, std::span<const uint8_t> learnt,
                          int64_t vocabulary, std::span<int32_t> inputs,
                          std::span<int32_t> targets);

class DocumentBatches final : public BatchSource {
 public:
  /// Rows come in the order of options.mode (RowOrder). Documents of fewer than two tokens have no
  /// target and are skipped. `learnt` is the loss mask: 1 for each token of the source that is
  /// scored as a target; empty: all are. Source and `learnt` must outlive this. Throws UserError if
  /// no document is left.
  DocumentBatches(const TokenSource& source, const std::vector<Document>& documents,
                  const BatchOptions& options, std::span<const uint8_t> learnt = {});

  void fill(int64_t index, Batch& batch) const override;
  int64_t epoch_of(int64_t index) const override { return order_->epoch_of(index); }
  /// The last step of an epoch is filled with empty rows.
  int64_t batches_per_pass() const override { return order_->batches_per_pass(); }
  int64_t tokens() const override { return tokens_; }
  std::string fingerprint() const override;

 private:
  struct Row {
    int64_t offset, length;  // inputs [offset, offset + length), targets one further on
  };

  const TokenSource& source_;
  std::span<const uint8_t> learnt_;
  BatchOptions options_;
  std::vector<Row> rows_;
  std::optional<PackedRows> packed_;  // packing of rows_ into flat rows
  int64_t tokens_ = 0;
  std::optional<RowOrder> order_;  // order of packed_, else of rows_
};

}  // namespace brrr::io
