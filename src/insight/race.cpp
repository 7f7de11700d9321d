#include "insight/race.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"

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
  std::sort(ratios.begin(), ratios.end());
  const size_t n = ratios.size();
  return {n % 2 == 1 ? ratios[n / 2] : (ratios[n / 2 - 1] + ratios[n / 2]) / 2, ratios[n / 4],
          ratios[n - 1 - n / 4], static_cast<int64_t>(n)};
}

}  // namespace brrr::insight
