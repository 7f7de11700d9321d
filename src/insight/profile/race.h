#pragma once
// Two ways to do the same, one after the other again and again: a machine that drifts, or that
// works for others too, is as slow for one as for the other.

#include <functional>

namespace brrr::insight {

struct RaceOptions {
  double seconds = 1;   // to go on for, at the least
  bool settle = false;  // before each that counts one that does not: caches hold what it needs
  int64_t least_rounds = 3, most_rounds = 30;
};

/// Of `other`'s time to `here`'s, over the rounds.
struct Race {
  double ratio = 1;                      // the median
  double low_ratio = 1, high_ratio = 1;  // the quartiles
  int64_t rounds = 0;
  /// Three rounds out of four agree.
  bool faster() const { return high_ratio < 1; }
};

/// Each returns the seconds that it took. The first round only warms up: memory that is touched
/// for the first time, teams that form.
Race race(const std::function<double()>& here, const std::function<double()>& other,
          const RaceOptions& options = {});

}  // namespace brrr::insight
