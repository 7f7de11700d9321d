#include "formats/plot_axis.h"

#include "base/errors.h"
#include "base/human.h"

namespace brrr::io {
namespace {

double step_of(const std::vector<double>& ticks) {
  return ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
}

/// A tick's number with as many decimals as the distance of the ticks asks for.
std::string tick_text(double value, double step) {
  const double largest = std::max(std::fabs(value), std::fabs(step));
  if (value != 0 && (largest >= 1e9 || std::fabs(step) < 1e-5)) return fmt::format("{:.3g}", value);
  if (std::fabs(step) >= 1e6 && value != 0) return fmt::format("{:g}M", value / 1e6);
  if (std::fabs(step) >= 1 && std::fabs(value - std::round(value)) < 1e-6)
    return with_commas(std::llround(value));
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 6);
  return fmt::format("{:.{}f}", value == 0 ? 0.0 : value, decimals);
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int target) {
  BRRR_CHECK(low < high && target >= 1, "ticks from {} to {}", low, high);
  const double raw = (high - low) / target;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double lead = raw / power;
  const double step = power * (lead <= 1 + 1e-9   ? 1
                               : lead <= 2 + 1e-9 ? 2
                               : lead <= 5 + 1e-9 ? 5
                                                  : 10);
  // Ticks are whole multiples of the step, computed each by itself: no sum drifts.
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  std::vector<double> out;
  for (double k = first; k <= last && out.size() < 1000; ++k) out.push_back(k * step);
  return out;
}

Axis linear_axis(Range range, int target, bool snap) {
  if (range.low == range.high) {
    const double room = range.low == 0 ? 1 : std::fabs(range.low) * 0.1;
    range.low -= room, range.high += room;
  }
  Axis axis;
  const std::vector<double> ticks = nice_ticks(range.low, range.high, target);
  axis.low = snap ? ticks.front() : range.low;
  axis.high = snap ? ticks.back() : range.high;
  const double slack = 1e-9 * (axis.high - axis.low);
  for (const double t : ticks)
    if (t >= axis.low - slack && t <= axis.high + slack) {
      axis.ticks.push_back(t);
      axis.labels.push_back(tick_text(t, step_of(ticks)));
    }
  return axis;
}

Axis log_axis(Range range) {
  if (range.low == range.high) range.low /= 1.5, range.high *= 1.5;
  Axis axis;
  if (range.high / range.low < 10) {
    // Less than a decade: round numbers at logarithmic places read best.
    axis = linear_axis(range, 8, false);
    axis.low = range.low / 1.02, axis.high = range.high * 1.02;
    axis.log = true;
    return axis;
  }
  axis.log = true;
  axis.low = range.low, axis.high = range.high;
  const int first = static_cast<int>(std::floor(std::log10(range.low)));
  const int last = static_cast<int>(std::ceil(std::log10(range.high)));
  const int every = std::max(1, (last - first + 7) / 8);
  const bool dense = last - first <= 3;
  for (int e = first; e <= last; e += every)
    for (const double m : {1.0, 2.0, 5.0}) {
      const double v = m * std::pow(10.0, e);
      if ((m > 1 && !dense) || v < range.low * 0.999 || v > range.high * 1.001) continue;
      axis.ticks.push_back(v);
      axis.labels.push_back(e >= -4 && e < 6 ? tick_text(v, std::pow(10.0, std::min(e, 0)))
                                             : fmt::format("{:g}", v));
    }
  return axis;
}

}  // namespace brrr::io
