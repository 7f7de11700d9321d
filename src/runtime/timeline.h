#pragma once
// What ran when: one record per node and run, kept only when a Timeline is attached.

#include <string>
#include <vector>

#include "ir/graph.h"

namespace brrr {

struct TimelineRecord {
  NodeId node = kNoNode;
  double start = 0;    // seconds on the monotonic clock
  double seconds = 0;  // wall time of the kernel
};

struct Timeline {
  std::vector<TimelineRecord> records;
};

}  // namespace brrr
