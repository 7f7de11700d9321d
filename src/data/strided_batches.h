#pragma once
// Every n-th batch of a source: what one of n ranks reads of an evaluation.

#include <memory>
#include <string>
#include <utility>

#include "base/integers.h"
#include "data/batch_source.h"

namespace brrr::io {

class StridedBatches final : public BatchSource {
 public:
  /// Batch i is batch first + i * step of `source`.
  StridedBatches(std::unique_ptr<BatchSource> source, int64_t first, int64_t step)
      : source_(std::move(source)), first_(first), step_(step) {}
  void fill(int64_t index, Batch& batch) const override { source_->fill(of(index), batch); }
  int64_t epoch_of(int64_t index) const override { return source_->epoch_of(of(index)); }
  int64_t batches_per_pass() const override {
    const int64_t count = source_->batches_per_pass();
    return count > first_ ? ceil_div(count - first_, step_) : 0;
  }
  int64_t tokens() const override { return source_->tokens(); }
  int64_t bytes_per_position() const override { return source_->bytes_per_position(); }
  std::string fingerprint() const override { return source_->fingerprint(); }

 private:
  int64_t of(int64_t index) const { return first_ + index * step_; }

  std::unique_ptr<BatchSource> source_;
  int64_t first_, step_;
};

}  // namespace brrr::io
