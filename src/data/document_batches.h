#pragma once
// Batches of whole documents: a row is a document, or T tokens of one that is longer, and never
// reaches into the next. What is left of a row is not scored. A batch is as long as its longest row
// needs, rounded up to one of a few lengths: programs have fixed shapes. Rows are grouped by the
// step, so that a step has the same rows however it is cut into batches.

#include <optional>
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

/// How many rows of up to `context` tokens they make.
int64_t document_rows(const std::vector<Document>& documents, int64_t context);

class DocumentBatches final : public BatchSource {
 public:
  /// Sampling::kDocuments or kGroupByLength. `source` must outlive this. Documents of fewer than
  /// two tokens have nothing to learn and are left out. Throws UserError when none is left.
  DocumentBatches(const TokenSource& source, const std::vector<Document>& documents,
                  const BatchOptions& options);

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
  BatchOptions options_;
  std::vector<Row> rows_;
  int64_t tokens_ = 0;
  std::optional<RowOrder> order_;  // of rows_
};

}  // namespace brrr::io
