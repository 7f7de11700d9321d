#pragma once
// The order in which rows of different lengths are read: which rows a batch has, and how long they
// are padded. A pure function of the batch's index. Rows are grouped by the step, so that a step
// has the same rows however it is cut into batches, and so do all ranks together.

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "data/batch_source.h"

namespace brrr::io {

/// Lengths for rows of up to `context` tokens, ascending, the last one `context`: from 16 tokens
/// each is a sixteenth to an eighth more than the one before, so that there is little padding; a
/// program for each is compiled in milliseconds.
std::vector<int64_t> padded_lengths(int64_t context);

/// Rounds the number of tokens of a flat batch up by at most an eighth, or to a multiple of 4, so
/// that few programs serve all batches.
int64_t flat_length(int64_t tokens);
/// Lengths for flat batches of up to `most` tokens, ascending, the last one `most`: each is at most
/// an eighth more than the one before, the first is about a 64th of `most`.
std::vector<int64_t> flat_lengths(int64_t most);

class RowOrder {
 public:
  /// `length(i)` is the length of row i < `rows`, at least 1 and at most options.context; it must
  /// stay callable, from any thread. options.mode:
  ///   kGroupByLength  Another random order each epoch, sorted by length within some steps. The
  ///                   longest row of all opens the epoch, so that the first step needs the most
  ///                   memory.
  ///   kSequential     The order of the rows.
  ///   the others      Another random order each epoch.
  RowOrder(size_t rows, std::function<int64_t(size_t)> length, const BatchOptions& options);

  /// The last step of an epoch is filled with empty rows.
  int64_t batches_per_pass() const;
  int64_t epoch_of(int64_t index) const { return index / batches_per_pass(); }

  struct BatchRows {
    std::vector<size_t> rows;  // of this rank; fewer than a batch has where the epoch ends
    int64_t length = 0;        // T of a padded batch, the same for all ranks
  };
  BatchRows batch(int64_t index) const;

 private:
  struct Megabatch {  // rows in the order in which batches take them
    int64_t epoch = -1, number = -1;
    std::vector<size_t> rows;
  };
  std::shared_ptr<const Megabatch> megabatch(int64_t epoch, int64_t number) const;

  size_t rows_;
  std::function<int64_t(size_t)> length_;
  BatchOptions options_;
  size_t longest_ = 0;  // index of the first of the longest rows
  int64_t batch_rows_ = 0;
  int64_t step_rows_ = 0;  // of all its batches
  int64_t megabatch_rows_ = 0;

  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Megabatch> last_;
};

}  // namespace brrr::io
