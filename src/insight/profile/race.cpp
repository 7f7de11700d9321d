#include "insight/profile/race.h"

#include <vector>

#include "base/clock.h"
#include "insight/machine/timing.h"

namespace brrr::insight {

Race race(const std::function<double()>& here, const std::function<double()>& other,
          const RaceOptions& options) {
  const auto timed = [&](const std::function<double()>& way) {
    if (options.settle) way();
    return way();
  };
  other();
  here();
  std::vector<double> ratios;
  const Stopwatch watch;
  const auto done = [&] {
    const auto rounds = static_cast<int64_t>(ratios.size());
    return rounds >= options.most_rounds ||
           (rounds >= options.least_rounds && watch.seconds() >= options.seconds);
  };
  while (!done()) {
    // Each of them goes first in every second round.
    const bool swapped = ratios.size() % 2 == 1;
    double now = swapped ? timed(here) : 0;
    const double then = timed(other);
    if (!swapped) now = timed(here);
    ratios.push_back(then / now);
  }
  const Timing t = timing_of(ratios);
  return {t.median, t.low, t.high, static_cast<int64_t>(ratios.size())};
}

}  // namespace brrr::insight
