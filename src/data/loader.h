#pragma once
// The loader: the batches of a source, in order. A batch is a pure function of (source, options,
// index), computed ahead of time by worker threads; so the same options give the same batches
// whatever the number of workers, and a restored loader continues with exactly the batches that the
// saved one would have given, whatever had been read ahead.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "data/batch_source.h"
#include "data/prefetcher.h"
#include "data/token_source.h"

namespace brrr::io {

struct LoaderOptions : BatchOptions {
  /// Threads that compute batches ahead; 0: next() computes.
  int64_t workers = 1;
  /// Batches ahead per worker.
  int64_t prefetch_factor = 2;
};

/// Where a loader stands. The fields other than `position` and `epoch` say what it was reading.
struct LoaderState {
  Sampling mode = Sampling::kRandom;
  int64_t epoch = 0;     // of the next batch's first row (0 for random); follows from position
  int64_t position = 0;  // batches handed out
  uint32_t seed = 0;
  std::string source;  // BatchSource::fingerprint()
  int64_t tokens = 0;
  int64_t batch = 0, context = 0;
  Anchor anchor = {};  // of the next batch
  int64_t batches_per_step = 1;

  std::string to_json() const;
  /// Throws UserError for text that is no such state.
  static LoaderState from_json(std::string_view text);
  bool operator==(const LoaderState&) const = default;
};

class Loader {
 public:
  /// Throws UserError: a number is out of range, or the batches ahead would not fit the memory.
  Loader(std::unique_ptr<BatchSource> source, const LoaderOptions& options);
  /// Windows of `source`, which must outlive the loader. Throws UserError as WindowBatches does.
  Loader(const TokenSource& source, const LoaderOptions& options);

  /// The next batch, valid until the following call. Throws what computing it threw.
  const Batch& next() { return prefetcher_->next(); }

  LoaderState state() const;
  /// Throws UserError, naming the field, for the state of another text or geometry.
  void restore(const LoaderState& state);

  int64_t batches_per_pass() const { return source_->batches_per_pass(); }
  /// Time that next() waited for batches.
  double seconds_waited() const { return prefetcher_->seconds_waited(); }

 private:
  std::unique_ptr<BatchSource> source_;
  LoaderOptions options_;
  std::string fingerprint_;
  std::unique_ptr<Prefetcher> prefetcher_;  // last: its workers read the source
};

}  // namespace brrr::io
