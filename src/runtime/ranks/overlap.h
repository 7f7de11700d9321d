#pragma once
// How much of the communication of a program hides behind its kernels: a simulation of its order,
// with asynchronous kernels one after the other on the link and all others on the processor.

#include <cstdint>
#include <span>

namespace brrr {

/// A kernel in the order of a program.
struct TimedKernel {
  double seconds = 0;            // on the link, if it is asynchronous; else on the processor
  bool is_asynchronous = false;  // begins its work and lets the next kernel start
  int64_t awaited = -1;          // place of the asynchronous kernel that has to be done before
};

struct Overlap {
  double seconds = 0;         // until all is done
  double link_seconds = 0;    // of asynchronous kernels
  double waited_seconds = 0;  // of the processor, for asynchronous kernels
  /// The share of the communication that costs no time; 1 where there is none.
  double hidden() const { return link_seconds > 0 ? 1 - waited_seconds / link_seconds : 1; }
  void operator+=(const Overlap& other) {
    seconds += other.seconds;
    link_seconds += other.link_seconds;
    waited_seconds += other.waited_seconds;
  }
};
/// One run, which ends when the last asynchronous kernel does.
Overlap simulate(std::span<const TimedKernel> kernels);

}  // namespace brrr
