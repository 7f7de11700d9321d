#pragma once
// Batches of texts with labels: each row is one example, already encoded. Rows are padded to the
// longest of their batch, or lie one behind the other (BatchOptions::flat); either way the size of
// a batch is rounded up to one of a few. Rows are grouped by the step, so that a step has the same
// rows however it is cut into batches; the last step of a pass is filled with empty rows, which are
// not scored.

#include <optional>
#include <string>
#include <vector>

#include "data/batch_source.h"
#include "data/labelled/labelled_file.h"
#include "data/row_order.h"

namespace brrr::io {

/// One example. What its kind of label does not need is empty.
struct EncodedRow {
  std::vector<int32_t> ids;    // with special tokens
  std::vector<int32_t> types;  // as many, or none
  int32_t label = kIgnoreId;   // kClasses; kIgnoreId: the row is not scored
  std::vector<float> values;   // kValues
  std::vector<int32_t> tags;   // kTags: one for each id, kIgnoreId where none is scored
};

struct LabelledBatchOptions {
  LabelKind kind = LabelKind::kClasses;
  int32_t pad = 0;         // the id of padding
  bool has_types = false;  // batches have types; rows without types get zeros
};

/// Batches hold what Batch::make_rows() makes, and by kind of label:
///   kClasses  targets [B]: the class, kIgnoreId for an empty row. count: scored rows.
///   kValues   values [B, K]; targets [B]: 0, or kIgnoreId for an empty row, whose values are 0.
///             count: scored rows.
///   kTags     targets, like tokens. count: scored tokens.
class LabelledBatches final : public BatchSource {
 public:
  /// options.mode is kEpoch (another random order each epoch), kGroupByLength (the same, rows of
  /// similar length in one batch) or kSequential (in order, for evaluation). `rows` must outlive
  /// this; `name` stands for them in messages. Throws UserError for another mode, for no rows, and
  /// for a row that is empty or longer than the context.
  LabelledBatches(const std::vector<EncodedRow>& rows, std::string name,
                  const BatchOptions& options, const LabelledBatchOptions& labelled);

  void fill(int64_t index, Batch& batch) const override;
  int64_t epoch_of(int64_t index) const override { return order_->epoch_of(index); }
  int64_t batches_per_pass() const override { return order_->batches_per_pass(); }
  /// Counts the tokens of all rows, special ones included.
  int64_t tokens() const override { return tokens_; }
  /// Over ids, types and labels of all rows.
  std::string fingerprint() const override;
  /// The rows that batch `index` holds, in order: which example a prediction is for. Fewer than B
  /// where a pass ends.
  std::vector<size_t> rows(int64_t index) const { return order_->batch(index).rows; }

 private:
  const std::vector<EncodedRow>& rows_;
  std::string name_;
  BatchOptions options_;
  LabelledBatchOptions labelled_;
  size_t values_ = 0;  // of each row
  int64_t tokens_ = 0;
  std::optional<RowOrder> order_;  // of rows_
};

}  // namespace brrr::io
