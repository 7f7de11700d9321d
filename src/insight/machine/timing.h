#pragma once
// The times of many rounds as three figures.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace brrr::insight {

struct Timing {
  double median = 0, low = 0, high = 0;  // the quartiles
};

/// Zeros for none; of an even number the median is the mean of the two in the middle.
inline Timing timing_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values[n / 4], values[n - 1 - n / 4]};
}

}  // namespace brrr::insight
