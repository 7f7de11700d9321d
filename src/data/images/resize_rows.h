#pragma once
// The loops of resize.cpp, for the instruction set of this processor. Results are integers that are
// the same for each.

#include <cstdint>

namespace brrr::io {

/// Bits behind the point of a weight.
inline constexpr int kResizeBits = 22;

/// The weights of one axis: result i reads `taps` inputs from first[i] on; unused ones weigh 0.
struct ResizeTaps {
  int64_t taps = 0;
  const int32_t* first = nullptr;    // [results]
  const int32_t* weights = nullptr;  // [results, taps]
  const int32_t* counts = nullptr;   // [results]: taps that count, at least 1
};

struct ResizeRows {
  /// One row of pixels of 3 channels. `in` is readable for 1 byte, and `out` writable for 1 byte,
  /// behind the last pixel.
  void (*columns)(const uint8_t* in, const ResizeTaps& taps, int64_t results, uint8_t* out);
  /// out[i] = the weighted sum of in[k * stride + i] over k < count.
  void (*rows)(const uint8_t* in, int64_t stride, const int32_t* weights, int64_t count,
               int64_t bytes, uint8_t* out);
};

const ResizeRows& resize_rows();

}  // namespace brrr::io
