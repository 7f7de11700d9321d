#pragma once
// Batches computed ahead of time by worker threads, handed out in order. The window of batches
// between the next one to hand out and the furthest one begun is bounded. What a worker throws
// reaches next() when its batch's turn has come.

#include <condition_variable>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "data/batch_source.h"

namespace brrr::io {

class Prefetcher {
 public:
  /// `source` must outlive this. `workers` threads keep up to `ahead` >= 1 batches ready; without
  /// workers next() computes.
  Prefetcher(const BatchSource& source, int workers, int ahead);
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The batch at position(), which moves on; valid until the following call. Throws what computing
  /// it threw, and stays there.
  const Batch& next();
  int64_t position() const { return position_; }
  /// Goes to any position; what was computed ahead is forgotten.
  void seek(int64_t position);
  /// Time that next() did not have its batch.
  double seconds_waited() const { return seconds_waited_; }

 private:
  struct Slot {
    Batch batch;
    std::exception_ptr error;
    bool ready = false;
  };
  void work(std::stop_token stop);
  Slot& slot(int64_t index) { return slots_[static_cast<size_t>(index) % slots_.size()]; }

  const BatchSource& source_;
  int64_t position_ = 0;  // written by next() and seek() under the mutex
  Batch current_;
  double seconds_waited_ = 0;

  // Shared with the workers.
  std::mutex mutex_;
  std::condition_variable_any work_, ready_;
  std::vector<Slot> slots_;            // batch i stands in slot i modulo their number
  int64_t begun_ = 0;                  // the next index that a worker takes
  uint64_t generation_ = 0;            // seek() makes what is being computed obsolete
  std::vector<std::jthread> threads_;  // last: they stop before the rest goes
};

}  // namespace brrr::io
