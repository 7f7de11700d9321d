#pragma once
// Computes how much of a program's communication is hidden behind its kernels, by simulating its
// order: asynchronous kernels run one after the other on the link, all others on the processor.

#include <cstdint>
#include <span>

namespace brrr {

/// A kernel in the order of a program.
struct TimedKernel {
  double seconds = 0;            // on the link if it is asynchronous, else on the processor
  bool is_asynchronous = false;  // the next kernel may start before this one has ended
  int64_t awaited = -1;          // index of the asynchronous kernel that it waits for; -1: none
};

struct Overlap {
  double seconds = 0;         // total duration
  double link_seconds = 0;    // sum of the asynchronous kernels
  double waited_seconds = 0;  // time in which the processor waits for asynchronous kernels
  /// The share of the communication that costs no time; 1 if there is no communication.
  double hidden() const { return link_seconds > 0 ? 1 - waited_seconds / link_seconds : 1; }
  void operator+=(const Overlap& other) {
    seconds += other.seconds;
    link_seconds += other.link_seconds;
    waited_seconds += other.waited_seconds;
  }
};
/// Simulates one run, which ends when all kernels have ended.
Overlap simulate(std::span<const TimedKernel> kernels);

}  // namespace brrr
