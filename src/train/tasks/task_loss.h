#pragma once
// TaskLoss: the graphs of the loss that a run's task has, in training and in evaluation, for
// batches of any size. Models say how a loss is computed (models/model.h); this says which one a
// task takes and in which layout.

#include <string>
#include <vector>

#include "models/model.h"
#include "train/options.h"

namespace brrr::train {

class TaskLoss {
 public:
  /// `model` must outlive this. Throws UserError where the model or the device lacks the layout
  /// (trains_flat).
  TaskLoss(const TrainOptions& options, const models::Model& model);

  /// Whether the rows of a batch are concatenated (io::BatchOptions::flat).
  bool is_flat() const { return is_flat_; }
  /// Tokens of a padded row, or of a whole flat batch of `rows` rows, that no batch exceeds.
  int64_t longest(int64_t rows) const;
  /// The loss of `rows` rows. `length`: tokens of a padded row, or of a whole flat batch.
  Graph training(int64_t rows, int64_t length) const;
  /// The same without dropout, with the outputs that evaluations read beside the loss.
  Graph evaluation(int64_t rows, int64_t length) const;
  /// Outputs of both graphs that are sums over a batch, as the loss is (SessionOptions::figures).
  std::vector<std::string> figures() const;

 private:
  models::FlatBinding binding(int64_t rows, int64_t length) const;

  const TrainOptions& options_;
  const models::Model& model_;
  bool is_flat_, compares_;  // compares_: pairs of sequences
};

}  // namespace brrr::train
