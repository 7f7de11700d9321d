#pragma once
// The streaming parts of cross_entropy: f32 arithmetic whatever the element type.

#include <cstdint>

namespace brrr::cpu {

/// max and sum e^(x - max) of a row; the logarithm of the sum is lse = max + log(sum).
struct ExpSum {
  float largest = 0;
  double sum = 0;
};

struct CrossEntropyRows {
  /// One pass over x: [n]: each element is read from memory once.
  ExpSum (*exp_sum)(const void* x, int64_t n);
  /// y = scale e^(x - lse); x, y: [n], y may be x.
  void (*probabilities)(const void* x, float lse, float scale, void* y, int64_t n);
};
const CrossEntropyRows& cross_entropy_rows(bool bf16);

}  // namespace brrr::cpu
