#pragma once
// Quantises a group of floats to 8-bit integers with one scale, by vector code.

#include <cstdint>

namespace brrr::cpu {

/// Quantises `count` floats, a multiple of 32. Writes each integer plus 128, as panels store it,
/// and returns the scale, which is the largest magnitude / 127. If an element is not finite, the
/// scale is NaN and all integers are 0.
using QuantizeGroup = float (*)(const float* x, int64_t count, uint8_t* integers);
QuantizeGroup quantize_group();

}  // namespace brrr::cpu
