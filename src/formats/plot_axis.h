#pragma once
// The axis of a plot: its range, its ticks at round numbers, and their texts.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace brrr::io {

/// The span of the values seen so far.
struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double v) { low = std::min(low, v), high = std::max(high, v); }
  bool empty() const { return !(low <= high); }
};

struct Axis {
  double low = 0, high = 1;
  std::vector<double> ticks;
  std::vector<std::string> labels;
  bool log = false;
  /// 0 at the low end, 1 at the high end.
  double place(double v) const {
    return log ? (std::log10(v) - std::log10(low)) / (std::log10(high) - std::log10(low))
               : (v - low) / (high - low);
  }
};

/// Round numbers (1, 2 or 5 times a power of ten apart), about `target` of them, that cover
/// [low, high]; low < high.
std::vector<double> nice_ticks(double low, double high, int target);

/// `snap`: the axis ends at ticks, else at the range. A range of one value gets room around it.
Axis linear_axis(Range range, int target, bool snap);
/// For positive values.
Axis log_axis(Range range);

}  // namespace brrr::io
