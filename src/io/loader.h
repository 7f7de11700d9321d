#pragma once
// Batches for language modelling: inputs [B, T] and targets [B, T], the targets one token further
// on. A batch is a pure function of (source, options, index), computed ahead of time by one
// prefetch thread; so the same options give the same batches, and a restored loader continues with
// exactly the batches that the saved one would have given, whatever had been read ahead.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "io/token_source.h"

namespace brrr::io {

enum class Sampling {
  /// Every row starts at a uniformly random token (nanoGPT).
  kRandom,
  /// Rows of T tokens side by side, in another random order each epoch; every target once per
  /// epoch. The last
  /// row of the text may be shorter. Batches run on over the end of an epoch.
  kEpoch,
  /// The same rows in order, for evaluation: every target once per pass. The last batches of a pass
  /// are filled
  /// with empty rows; the next pass begins with a new batch.
  kSequential,
};

std::string_view name_of(Sampling mode);
/// "random", "epoch", "sequential". Throws UserError (usage) for another name.
Sampling sampling_from_name(std::string_view name);

/// Target of a position that is not scored; its input is 0.
inline constexpr int32_t kIgnoreId = -1;

struct LoaderOptions {
  Sampling mode = Sampling::kRandom;
  int64_t batch = 1;    // B: rows per rank
  int64_t context = 1;  // T
  int64_t vocab = 0;    // ids are checked against it
  uint32_t seed = 0;
  /// Of the rows of all ranks, laid out batch by batch, rank r gets every world-th, from r on.
  int64_t rank = 0, world = 1;
  /// Batches computed ahead; 0: no thread, next() computes.
  int prefetch = 2;
};

struct Batch {
  std::vector<int32_t> inputs;   // [B, T]
  std::vector<int32_t> targets;  // [B, T], kIgnoreId where there is none
  int64_t real_tokens = 0;       // targets that are scored
};

/// Where a loader stands. The fields other than `position` and `epoch` say what it was reading.
struct LoaderState {
  Sampling mode = Sampling::kRandom;
  int64_t epoch = 0;     // of the next batch's first row (0 for random); follows from position
  int64_t position = 0;  // batches handed out
  uint32_t seed = 0;
  std::string source;  // TokenSource::fingerprint()
  int64_t tokens = 0;
  int64_t batch = 0, context = 0, world = 1;

  std::string to_json() const;
  /// Throws UserError for text that is no such state.
  static LoaderState from_json(std::string_view text);
  bool operator==(const LoaderState&) const = default;
};

class Loader {
 public:
  /// `source` must outlive the loader. Throws UserError: the context is longer than the text, or a
  /// number is out of range.
  Loader(const TokenSource& source, const LoaderOptions& options);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  ~Loader();

  /// The next batch, valid until the following call. Throws what reading it threw: UserError for an
  /// id outside the vocabulary.
  const Batch& next();

  LoaderState state() const;
  /// Throws UserError, naming the field, for the state of another text or geometry.
  void restore(const LoaderState& state);

  /// Batches until every target was seen once: of a pass (sequential), of an epoch rounded up
  /// (epoch), or tokens / (B * T * world) rounded up (random).
  int64_t batches_per_pass() const;
  /// Time that next() waited for batches.
  double seconds_waited() const { return seconds_waited_; }

 private:
  void fill(int64_t index, Batch& batch) const;
  int64_t row_offset(int64_t row) const;  // -1: an empty row
  int64_t epoch_of(int64_t position) const;
  void prefetch(std::stop_token stop);

  const TokenSource& source_;
  LoaderOptions options_;
  std::string fingerprint_;
  int64_t windows_ = 0;  // rows of T tokens in the source
  int64_t position_ = 0;
  Batch current_;
  double seconds_waited_ = 0;

  // Shared with the prefetch thread.
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Batch> ready_;  // batches position_, position_ + 1, ...
  std::vector<Batch> spare_;
  int64_t produce_ = 0;      // the next index to compute
  uint64_t generation_ = 0;  // restore() makes what is being computed obsolete
  std::exception_ptr error_;
  std::jthread thread_;  // last: it stops before the rest goes
};

}  // namespace brrr::io
