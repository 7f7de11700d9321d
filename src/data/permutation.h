#pragma once
// A seeded permutation of [0, n) that needs no memory: a balanced Feistel network over the smallest
// even number of bits that holds n, walked along its cycle until it lands inside (Black and
// Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). The domain is less than 4 n, so a
// walk takes fewer than four steps on average. The round function is Philox.

#include <bit>
#include <cstdint>

#include "base/errors.h"
#include "base/rng.h"

namespace brrr::io {

class Permutation {
 public:
  /// 0 < n <= 2^62. Another key is another permutation.
  Permutation(uint64_t n, RngKey key) : n_(n), key_(key) {
    BRRR_CHECK(n > 0 && n <= uint64_t{1} << 62, "n = {}", n);
    half_bits_ = static_cast<int>((std::bit_width(n - 1) + 1) / 2);
    mask_ = (uint64_t{1} << half_bits_) - 1;
  }
  uint64_t size() const { return n_; }

  /// The image of i < size().
  uint64_t operator()(uint64_t i) const {
    BRRR_CHECK(i < n_, "{} of {}", i, n_);
    if (n_ == 1) return 0;
    do i = cipher(i);
    while (i >= n_);
    return i;
  }

 private:
  static constexpr uint32_t kRounds = 6, kStream = 0x50e20000u;

  uint64_t cipher(uint64_t i) const {
    uint64_t left = i >> half_bits_, right = i & mask_;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (philox(key_, kStream + round, right)[0] & mask_);
      left = right;
      right = mixed;
    }
    return left << half_bits_ | right;
  }

  uint64_t n_;
  RngKey key_;
  int half_bits_ = 0;
  uint64_t mask_ = 0;
};

}  // namespace brrr::io
