#include "data/prefetcher.h"

#include <utility>

#include "base/clock.h"
#include "base/errors.h"

namespace brrr::io {

Prefetcher::Prefetcher(const BatchSource& source, int workers, int ahead)
    : source_(source), slots_(static_cast<size_t>(ahead)) {
  BRRR_CHECK(workers >= 0 && ahead >= 1, "{} workers, {} ahead", workers, ahead);
  for (int i = 0; i < workers; ++i)
    threads_.emplace_back([this](std::stop_token stop) { work(std::move(stop)); });
}

void Prefetcher::work(std::stop_token stop) {
  Batch batch;
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool has_work = work_.wait(
        lock, stop, [&] { return begun_ < position_ + static_cast<int64_t>(slots_.size()); });
    if (!has_work || stop.stop_requested()) return;
    const int64_t index = begun_++;
    const uint64_t generation = generation_;
    std::swap(batch, slot(index).batch);  // the memory of a batch that was handed out
    lock.unlock();
    std::exception_ptr error;
    try {
      source_.fill(index, batch);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (generation != generation_) continue;  // seek() came in between
    Slot& done = slot(index);
    std::swap(batch, done.batch);
    done.error = error;
    done.ready = true;
    ready_.notify_one();
  }
}

const Batch& Prefetcher::next() {
  if (threads_.empty()) {
    const Stopwatch waiting;
    source_.fill(position_, current_);
    seconds_waited_ += waiting.seconds();
    ++position_;
    return current_;
  }
  std::unique_lock lock(mutex_);
  Slot& mine = slot(position_);
  if (!mine.ready) {
    const Stopwatch waiting;
    ready_.wait(lock, [&] { return mine.ready; });
    seconds_waited_ += waiting.seconds();
  }
  if (mine.error) std::rethrow_exception(mine.error);
  std::swap(current_, mine.batch);
  mine.ready = false;
  ++position_;
  work_.notify_one();
  return current_;
}

void Prefetcher::seek(int64_t position) {
  const std::lock_guard lock(mutex_);
  position_ = begun_ = position;
  ++generation_;
  for (Slot& s : slots_) {
    s.ready = false;
    s.error = nullptr;
  }
  work_.notify_all();
}

}  // namespace brrr::io
