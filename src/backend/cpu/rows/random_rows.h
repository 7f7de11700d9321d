#pragma once
// The 16-bit random stream of base/rng.h in vectors, for random_bits and dropout.

#include <cstdint>

#include "base/rng.h"

namespace brrr::cpu {

/// Ranges of elements start at multiples of this.
inline constexpr int64_t kRandomStep = 512;

/// draw() may write this many blocks more than asked for.
inline constexpr int64_t kRandomSlack = 8;

struct RandomRows {
  /// out[8 b + i] = element 8 (first + b) + i of the stream for i < 8, b < blocks.
  void (*draw)(RngKey key, uint32_t stream, uint64_t first, int64_t blocks, uint16_t* out);
  /// y[i] = element begin + i of the stream, i < n.
  void (*bits)(RngKey key, uint32_t stream, int64_t begin, int32_t* y, int64_t n);
  /// y[i] = element begin + i of the stream >= threshold ? x[i] scale : 0; y may be x.
  void (*dropout)(RngKey key, uint32_t stream, int64_t begin, uint32_t threshold, float scale,
                  const void* x, void* y, int64_t n);
};
const RandomRows& random_rows(bool bf16);

}  // namespace brrr::cpu
