#pragma once
// How the micro-batches of a step are divided among slots and ranks. The slots, their rows and the
// order in which their gradients are summed are the same for any number of ranks, so that the bits
// of a run do not depend on it.

#include <cstdint>
#include <memory>

#include "data/batch_source.h"
#include "optim/optimizer.h"
#include "runtime/ranks/communicator.h"

namespace brrr::train {

struct StepShares {
  int64_t ranks = 1, rank = 0;
  int zero = 0;
  int64_t slots = 1;          // a multiple of ranks; a power of two, or as many as ranks
  int64_t micro_batches = 1;  // of all ranks; a multiple of slots

  int64_t per_slot() const { return micro_batches / slots; }
  /// Micro-batches of one rank in a step.
  int64_t local() const { return micro_batches / ranks; }
  /// Up to stage 1 a rank has neighbouring slots, whose sum is exchanged once. Beyond, gradients
  /// are exchanged slot by slot, and ranks have neighbours. Both are subtrees of the one tree.
  bool is_strided() const { return zero >= 2; }
  /// The number, among those of all ranks, of micro-batch `i` of this rank.
  int64_t number_of(int64_t i) const { return number_of(i, rank); }
  int64_t number_of(int64_t i, int64_t of_rank) const;
  /// What the program of micro-batch `i` does with its gradients.
  optim::GradientSums sums_of(int64_t i) const;
  bool operator==(const StepShares&) const = default;
};

/// The batches of one rank, numbered without gaps: those of `source` that are its micro-batches.
class SharedBatches final : public io::BatchSource {
 public:
  SharedBatches(std::unique_ptr<io::BatchSource> source, const StepShares& shares)
      : source_(std::move(source)), shares_(shares) {}
  void fill(int64_t index, io::Batch& batch) const override {
    source_->fill(number_of(index), batch);
  }
  int64_t epoch_of(int64_t index) const override { return source_->epoch_of(first_of(index)); }
  int64_t batches_per_pass() const override { return source_->batches_per_pass() / shares_.ranks; }
  int64_t tokens() const override { return source_->tokens(); }
  int64_t bytes_per_position() const override { return source_->bytes_per_position(); }
  std::string fingerprint() const override { return source_->fingerprint(); }
  io::Anchor anchor(int64_t index) const override { return source_->anchor(first_of(index)); }
  bool start_from(const io::Anchor& anchor, int64_t index) override {
    return source_->start_from(anchor, first_of(index));
  }

 private:
  int64_t number_of(int64_t index) const {
    return first_of(index) + shares_.number_of(index % shares_.local());
  }
  /// The first micro-batch, of all ranks, of the step that `index` belongs to.
  int64_t first_of(int64_t index) const { return index / shares_.local() * shares_.micro_batches; }
  std::unique_ptr<io::BatchSource> source_;
  StepShares shares_;
};

}  // namespace brrr::train
