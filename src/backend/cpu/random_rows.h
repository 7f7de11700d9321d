#pragma once
// The 16-bit random stream of base/rng.h in vectors, for random_bits and dropout.

#include <cstdint>

#include "base/rng.h"

namespace brrr::cpu {

/// Ranges of elements start at multiples of this.
inline constexpr int64_t kRandomStep = 512;

struct RandomRows {
  /// y[i] = element begin + i of the stream, i < n.
  void (*bits)(RngKey key, uint32_t stream, int64_t begin, int32_t* y, int64_t n);
  /// y[i] = element begin + i of the stream >= threshold ? x[i] scale : 0; y may be x.
  void (*dropout)(RngKey key, uint32_t stream, int64_t begin, uint32_t threshold, float scale,
                  const void* x, void* y, int64_t n);
};
const RandomRows& random_rows(bool bf16);

}  // namespace brrr::cpu
