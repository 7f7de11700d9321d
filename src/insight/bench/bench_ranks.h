#pragma once
// What communication between ranks costs: the time of one exchange by its size, and the two figures
// of the alpha-beta model that forecasts use.

#include <cstdint>
#include <vector>

#include "insight/machine/timing.h"
#include "runtime/ranks/communicator.h"

namespace brrr::insight {

struct RanksRow {
  int64_t bytes = 0;  // that each rank sends, and receives
  Timing ms;          // of the slowest rank
};
struct RanksResult {
  std::vector<RanksRow> rows;
  double latency_us = 0;            // alpha: of an exchange of nothing
  double gigabytes_per_second = 0;  // 1 / beta: of each rank, in each direction
};

/// Times all-to-all exchanges, the first half of an all-reduce, for `seconds` at each message size.
/// Every rank must call it; every rank gets the same result.
RanksResult bench_ranks(Communicator& communicator, double seconds);

}  // namespace brrr::insight
