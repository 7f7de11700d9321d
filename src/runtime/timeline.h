#pragma once
// What ran when: one record per node and run, kept only when a Timeline is attached. On the host a
// look at the processor's counter for each kernel is all that it costs, and two at the clock for a
// run; elsewhere the device's own clock tells.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace brrr {

class Program;

struct TimelineRecord {
  NodeId node = kNoNode;  // a state input: its new value is copied to it, see MemoryPlan::copies
  double start = 0;       // seconds on the monotonic clock
  double seconds = 0;     // of the kernel, and of what is done to start it
};

/// One run of a program: records[first .. last) are its kernels, in the order in which they ran.
struct TimelineRun {
  const Program* program = nullptr;
  double start = 0, seconds = 0;
  size_t first = 0, last = 0;
};

struct Timeline {
  std::vector<TimelineRecord> records;
  std::vector<TimelineRun> runs;
  void clear() {
    records.clear();
    runs.clear();
  }
};

/// Adds one run to a timeline while it happens: a kernel begins where the one before ended.
class TimelineWriter {
 public:
  TimelineWriter(Timeline& timeline, const Program& program);
  /// The kernel of `node` has just ended.
  void ended(NodeId node);
  /// The run has ended: its records are in seconds from now on.
  void finish();
  /// A device has just ended the run of these nodes: when it passed the marks (Device::marks)
  /// before the first and behind each.
  void finish(std::span<const NodeId> nodes, std::span<const double> passed);

 private:
  Timeline& timeline_;
  TimelineRun run_;
  uint64_t first_, last_;  // ticks
};

}  // namespace brrr
