#pragma once
// What ran when: one record per node and run, kept only when a Timeline is attached. Two looks at
// the clock for each kernel are all that it costs.

#include <string>
#include <vector>

#include "ir/graph.h"

namespace brrr {

class Program;

struct TimelineRecord {
  NodeId node = kNoNode;  // a state input: its new value is copied to it, see MemoryPlan::copies
  double start = 0;       // seconds on the monotonic clock
  double seconds = 0;     // wall time of the kernel
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

}  // namespace brrr
