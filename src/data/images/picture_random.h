#pragma once
// The random numbers of one picture in one epoch: a stream of its own, whatever other pictures
// draw.

#include <cmath>

#include "base/rng.h"

namespace brrr::io {

class PictureRandom {
 public:
  PictureRandom(RngKey key, uint64_t picture) : stream_(key, kStream, picture << kBitsOfDraws) {}
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(stream_.next_uniform()); }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Uniform in [low, high].
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(stream_.next_below(static_cast<uint64_t>(high - low) + 1));
  }
  bool chance(double probability) { return uniform() < probability; }

 private:
  static constexpr uint32_t kStream = 0x1a9e0000u;
  static constexpr int kBitsOfDraws = 16;
  RngStream stream_;
};

}  // namespace brrr::io
